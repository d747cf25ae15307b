//! Real requests to a small server on loopback.

use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::executor::port::StopReason;
use crate::executor::port::recorder::Recorder;

/// Answers each request with the next of the given answers, and keeps what it was sent.
struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let serving = tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !whole(&request) {
                    let mut chunk = [0; 4096];
                    let count = stream.read(&mut chunk).await.unwrap();
                    if count == 0 {
                        break;
                    }
                    request.extend_from_slice(&chunk[..count]);
                }
                seen.lock()
                    .unwrap()
                    .push(String::from_utf8(request).unwrap());
                // The client may have read enough and gone.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
            std::future::pending::<()>().await;
        });
        Self {
            port,
            requests,
            serving,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn request(&self, index: usize) -> String {
        self.requests.lock().unwrap()[index].to_ascii_lowercase()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

fn open() -> Http {
    Http::new(HttpRules {
        allow_networks: vec!["127.0.0.1/32".parse().unwrap()],
        ..HttpRules::default()
    })
}

async fn run(http: &Http, params: Value) -> Ending {
    http.run(Arc::new(Recorder::new(params))).await
}

fn failure(ending: Ending) -> (String, bool) {
    match ending {
        Ending::Failed { message, retryable } => (message, retryable),
        other => panic!("not a failure: {other:?}"),
    }
}

#[tokio::test]
async fn a_request_carries_its_token_and_its_answer_comes_back() {
    let server = Server::start(vec![answer("201 Created", "", "made")]).await;
    let params = json!({
        "url": server.url("/a?b"), "method": "put", "body": {"x": 1}, "headers": {"X-Key": "k"},
    });
    let Ending::Succeeded(value) = run(&open(), params).await else {
        panic!("refused");
    };
    assert_eq!(value["status"], 201);
    assert_eq!(value["body"], "made");
    assert_eq!(value["body_truncated"], false);
    let request = server.request(0);
    for part in [
        "put /a?b http/1.1\r\n",
        "\r\nx-key: k\r\n",
        "\r\ntenure-fencing-token: 0000000001.00000000000000000019\r\n",
        "\r\ntenure-run-id: 41\r\n",
        "\r\nidempotency-key: tenure-1-41-2\r\n",
        "\r\ncontent-type: application/json\r\n",
        "\r\n\r\n{\"x\":1}",
    ] {
        assert!(request.contains(part), "{part:?} is not in {request:?}");
    }
}

#[tokio::test]
async fn loopback_is_refused_unless_it_is_listed() {
    let server = Server::start(vec![]).await;
    let closed = Http::new(HttpRules::default());
    let (message, retryable) = failure(run(&closed, json!({"url": server.url("/")})).await);
    assert!(message.contains("127.0.0.1 is loopback"), "{message}");
    assert!(!retryable);
    assert!(server.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_status_that_was_not_expected_is_a_failure() {
    for (status, retryable) in [
        ("404 Not Found", false),
        ("429 Too Many Requests", true),
        ("503 Service Unavailable", true),
    ] {
        let server = Server::start(vec![answer(status, "", "\nbecause\n")]).await;
        let (message, again) = failure(run(&open(), json!({"url": server.url("/")})).await);
        assert!(
            message.contains(&status[..3]) && message.ends_with(": because"),
            "{message}"
        );
        assert_eq!(again, retryable, "{status}");
    }
}

#[tokio::test]
async fn of_a_long_body_only_the_start_is_read() {
    let server = Server::start(vec![answer("200 OK", "", &"x".repeat(10_000_000))]).await;
    let Ending::Succeeded(value) = run(&open(), json!({"url": server.url("/")})).await else {
        panic!("refused");
    };
    assert_eq!(value["body"].as_str().map(str::len), Some(1024));
    assert_eq!(value["body_truncated"], true);
}

#[tokio::test]
async fn redirects_are_an_answer_unless_they_are_followed() {
    let found = || answer("302 Found", "location: /there\r\n", "");
    let server = Server::start(vec![found(), found(), answer("200 OK", "", "there")]).await;
    let (message, _) = failure(run(&open(), json!({"url": server.url("/here")})).await);
    assert!(message.contains("302"), "{message}");
    let params = json!({"url": server.url("/here"), "body": "b", "follow_redirects": true});
    let Ending::Succeeded(value) = run(&open(), params).await else {
        panic!("not followed");
    };
    assert_eq!(value["body"], "there");
    assert!(server.request(1).starts_with("post /here "));
    assert!(server.request(2).starts_with("get /there "));
}

#[tokio::test]
async fn a_redirect_to_an_address_inside_is_refused() {
    let location = "location: http://169.254.169.254/latest/meta-data/\r\n";
    let server = Server::start(vec![answer("302 Found", location, "")]).await;
    let params = json!({"url": server.url("/"), "follow_redirects": true});
    let (message, retryable) = failure(run(&open(), params).await);
    assert!(
        message.contains("169.254.169.254 is link-local"),
        "{message}"
    );
    assert!(!retryable);
}

#[tokio::test]
async fn credentials_stay_with_their_server() {
    let there = Server::start(vec![answer("200 OK", "", "")]).await;
    let location = format!("location: {}\r\n", there.url("/"));
    let here = Server::start(vec![answer("307 Temporary Redirect", &location, "")]).await;
    let params = json!({
        "url": here.url("/"), "method": "POST", "body": "b", "follow_redirects": true,
        "headers": {"Authorization": "Bearer s", "X-Api-Key": "s", "Accept": "text/plain"},
    });
    assert!(matches!(run(&open(), params).await, Ending::Succeeded(_)));
    assert!(here.request(0).contains("bearer s"));
    let request = there.request(0);
    assert!(
        !request.contains("bearer s") && !request.contains("x-api-key"),
        "{request}"
    );
    assert!(
        request.starts_with("post / ") && request.contains("accept: text/plain"),
        "{request}"
    );
}

#[tokio::test]
async fn endless_redirects_end() {
    let again = answer("302 Found", "location: /\r\n", "");
    let server = Server::start(vec![again; 20]).await;
    let params = json!({"url": server.url("/"), "follow_redirects": true});
    let (message, _) = failure(run(&open(), params).await);
    assert!(message.contains("more than 5 redirects"), "{message}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let server = Server::start(vec![]).await;
    let params = json!({"url": server.url("/"), "timeout": "50ms"});
    let (message, retryable) = failure(run(&open(), params).await);
    assert!(message.contains("no answer") && retryable, "{message}");
}

#[tokio::test]
async fn a_refused_connection_may_be_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let (message, retryable) = failure(run(&open(), json!({"url": url})).await);
    assert!(
        message.starts_with("cannot connect") && retryable,
        "{message}"
    );
}

#[tokio::test]
async fn a_stop_ends_the_request() {
    let server = Server::start(vec![]).await;
    let port = Arc::new(Recorder::new(json!({"url": server.url("/")})));
    port.stop(StopReason::TimedOut);
    assert_eq!(
        open().run(port).await,
        Ending::Stopped(StopReason::TimedOut)
    );
}
