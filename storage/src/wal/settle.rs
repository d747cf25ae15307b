//! Has the end of the log covered by a mark soon, also if nothing more is written.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::disk::Disk;

use super::command::{Command, Request};

/// How long a batch may stay without a mark, before the sync that makes it durable. So often, at
/// most, a log under load syncs once more.
const UNMARKED_FOR: Duration = Duration::from_millis(100);

/// Answers each note of the writer that a batch has no mark with one request for it, a little
/// later. Holds no handle of the log while it waits.
pub(super) async fn serve<D: Disk>(
    disk: D,
    mut unmarked: mpsc::Receiver<()>,
    requests: mpsc::WeakSender<Request>,
) {
    while let Some(()) = unmarked.recv().await {
        disk.pause(UNMARKED_FOR).await;
        let Some(requests) = requests.upgrade() else {
            return;
        };
        let request = Request {
            command: Command::Settle,
            done: None,
        };
        if requests.send(request).await.is_err() {
            return;
        }
    }
}
