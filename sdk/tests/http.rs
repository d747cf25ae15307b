//! The real transport against a tiny server on loopback.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tenure_sdk::api::ErrorCode;
use tenure_sdk::{
    Client, Error, HttpTransport, Lane, Method, Request, RetryPolicy, Transport, TransportError,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A server and what it saw.
struct Server {
    address: String,
    connections: Arc<AtomicU32>,
    serving: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let answer = |status: u16, kind: &str, body: Bytes| {
        hyper::Response::builder()
            .status(status)
            .header("content-type", kind)
            .header("tenure-term", "3")
            .body(Full::new(body))
            .unwrap()
    };
    Ok(match head.uri.path() {
        "/healthz" => answer(
            200,
            "application/json",
            r#"{"live":true,"ready":false}"#.into(),
        ),
        "/echo" => {
            let token = head.headers.get("authorization").unwrap().to_str().unwrap();
            let text = format!("{} {token} {}", head.method, String::from_utf8_lossy(&body));
            answer(200, "text/plain", text.into())
        }
        "/huge" => answer(200, "text/plain", Bytes::from(vec![b'x'; 17 * 1024 * 1024])),
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(3_600)).await;
            answer(200, "text/plain", Bytes::new())
        }
        _ => {
            let problem = tenure_sdk::api::Problem::new(ErrorCode::NotFound, "no such path");
            let body = serde_json::to_vec(&problem).unwrap();
            answer(404, "application/problem+json", body.into())
        }
    })
}

async fn serve() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&connections);
    let serving = tokio::spawn(async move {
        // Connections end with the server.
        let mut open = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            open.spawn(async move {
                let service = service_fn(answer);
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                let _ = connection.await;
            });
        }
    });
    Server {
        address,
        connections,
        serving,
    }
}

fn request(node: &str, path: &str, lane: Lane, timeout_ms: u64) -> Request {
    Request {
        node: node.to_owned(),
        method: Method::Post,
        path: path.to_owned(),
        headers: vec![("authorization", "Bearer t".to_owned())],
        body: Bytes::from_static(b"hello"),
        timeout: Duration::from_millis(timeout_ms),
        lane,
    }
}

fn client(address: &str) -> Client {
    let policy = RetryPolicy {
        overall_timeout: Duration::from_millis(300),
        ..RetryPolicy::default()
    };
    Client::builder()
        .node(address)
        .token("t")
        .retry(policy)
        .build()
        .unwrap()
}

#[tokio::test]
async fn calls_go_over_real_connections() {
    let server = serve().await;
    let client = client(&server.address);
    for _ in 0..5 {
        let health = client.health().await.unwrap();
        assert_eq!((health.live, health.ready), (true, false));
    }
    assert_eq!(
        server.connections.load(Ordering::SeqCst),
        1,
        "the connection is kept open"
    );
    assert_eq!(client.highest_term().get(), 3);
    let error = client.cluster().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotFound));
}

#[tokio::test]
async fn each_lane_has_its_own_connection() {
    let server = serve().await;
    let transport = HttpTransport::new();
    for lane in [
        Lane::Call,
        Lane::Heartbeat,
        Lane::Poll,
        Lane::Call,
        Lane::Heartbeat,
    ] {
        let response = transport
            .send(request(&server.address, "/echo", lane, 30_000))
            .await
            .unwrap();
        assert_eq!(response.body, "POST Bearer t hello");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_server_that_restarts_is_reached_again() {
    let server = serve().await;
    let transport = HttpTransport::new();
    let address = server.address.clone();
    transport
        .send(request(&address, "/echo", Lane::Call, 30_000))
        .await
        .unwrap();
    drop(server);
    // Until the port is free and the kept connection is seen to be closed.
    let refused = loop {
        match transport
            .send(request(&address, "/echo", Lane::Call, 30_000))
            .await
        {
            Err(error @ TransportError::Unreachable(_)) => break error,
            Err(TransportError::Broken(_)) | Ok(_) => tokio::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
    };
    assert!(refused.had_no_side_effect());
}

#[tokio::test]
async fn answers_are_bounded_in_time_and_size() {
    let server = serve().await;
    let transport = HttpTransport::new();
    let slow = transport
        .send(request(&server.address, "/slow", Lane::Call, 50))
        .await;
    assert_eq!(slow, Err(TransportError::Timeout));
    let huge = transport
        .send(request(&server.address, "/huge", Lane::Call, 30_000))
        .await;
    assert!(
        matches!(huge, Err(TransportError::Malformed(_))),
        "{huge:?}"
    );
}

#[tokio::test]
async fn nothing_listening_means_nothing_done() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = client(&address).health().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}
