//! The task socket, both sides over a real socket.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use super::client::{ChannelError, ask};
use super::*;
use crate::executor::port::recorder::Recorder;
use crate::executor::port::{Resume, StopReason, TaskPort};

const LIMIT: Duration = Duration::from_secs(30);

struct Task {
    port: Arc<Recorder>,
    socket: PathBuf,
    serving: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Task {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("task.sock");
        let resume = Resume {
            offset: 5,
            state: vec![0, 255],
        };
        let port = Arc::new(Recorder::with_checkpoint(json!({"a": 1}), Some(resume)));
        let listener = UnixListener::from_std(server::bind(&socket).unwrap()).unwrap();
        let served: Arc<dyn TaskPort> = port.clone();
        Self {
            port,
            socket,
            serving: tokio::spawn(server::serve(listener, served)),
            _folder: folder,
        }
    }

    async fn ask(&self, request: Request) -> Answer {
        ask(&self.socket, &request, LIMIT).await.unwrap()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn checkpoint(offset: u64, state: &[u8]) -> Request {
    Request::Checkpoint {
        offset,
        state: state.into(),
    }
}

#[tokio::test]
async fn checkpoint_progress_and_context_reach_the_task() {
    let task = Task::start();
    let mode = std::fs::metadata(&task.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let answer = task.ask(checkpoint(9, b"\x00state")).await;
    assert_eq!(answer, Answer::Committed { offset: 9 });
    let answer = task.ask(Request::Progress { value: 12 }).await;
    assert_eq!(answer, Answer::Noted { value: 12 });
    let Answer::Context(context) = task.ask(Request::Context).await else {
        panic!("no context");
    };
    assert_eq!((context.run, context.shard, context.term), (41, 2, 7));
    assert_eq!(context.checkpoint.map(|found| found.offset), Some(5));
    assert_eq!(
        *task.port.checkpoints.lock().unwrap(),
        [(9, b"\x00state".to_vec())]
    );
    assert_eq!(*task.port.progress.lock().unwrap(), [12]);
}

#[tokio::test]
async fn refusals_carry_their_code_and_the_tenure_goes_on() {
    let task = Task::start();
    task.ask(checkpoint(9, b"")).await;
    let Answer::Refused { code, .. } = task.ask(checkpoint(8, b"")).await else {
        panic!("an offset went back");
    };
    assert_eq!(code, "checkpoint_regressed");
    let large = vec![0; 64 * 1024 + 1];
    let Answer::Refused { code, .. } = task.ask(checkpoint(10, &large)).await else {
        panic!("a state that is too large was taken");
    };
    assert_eq!(code, "checkpoint_too_large");
    assert_eq!(
        task.ask(checkpoint(10, &large[1..])).await,
        Answer::Committed { offset: 10 }
    );
}

#[tokio::test]
async fn after_the_loss_of_the_lease_a_task_is_told_to_stop() {
    let task = Task::start();
    task.port
        .stop(StopReason::LeaseLost("epoch 20 holds it".into()));
    for request in [checkpoint(9, b""), Request::Progress { value: 1 }] {
        let answer = task.ask(request).await;
        assert!(matches!(answer, Answer::Fenced { .. }), "{answer:?}");
    }
    assert!(task.port.checkpoints.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_is_no_message_is_answered_and_hung_up() {
    let task = Task::start();
    for bytes in [
        b"\x00\x00\x00\x02{}".to_vec(),
        b"\xff\xff\xff\xff".to_vec(),
        b"\x00\x00\x00\x01\xff".to_vec(),
    ] {
        let mut stream = UnixStream::connect(&task.socket).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let answer: Option<Answer> = read(&mut stream).await.unwrap();
        assert!(
            matches!(&answer, Some(Answer::Refused { code, .. }) if code == "invalid_request"),
            "{answer:?}"
        );
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    }
    // The next one is served as ever.
    let answer = task.ask(Request::Progress { value: 3 }).await;
    assert_eq!(answer, Answer::Noted { value: 3 });
}

#[tokio::test]
async fn many_clients_at_once_are_all_answered() {
    let task = Task::start();
    let asks = (0..100).map(|value| task.ask(Request::Progress { value }));
    let answers = futures::future::join_all(asks).await;
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Answer::Noted { .. }))
    );
    assert_eq!(task.port.progress.lock().unwrap().len(), 100);
}

#[tokio::test]
async fn without_an_executor_the_error_names_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("task.sock");
    let fault = ask(&socket, &Request::Context, LIMIT).await.unwrap_err();
    assert!(matches!(fault, ChannelError::Unreachable { .. }));
    assert!(fault.to_string().contains("task.sock"), "{fault}");
}
