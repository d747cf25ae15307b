//! When the process is asked to stop.

use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGTERM or SIGINT. A process that cannot listen for them waits for ever: the system's default
/// then ends it.
pub async fn stop_requested() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Leaves the terminal of the process that started this one. Ctrl-C there then reaches neither this process
/// nor what it starts, and a task that opens `/dev/tty` gets an error; with the terminal it would be stopped by
/// the system until its time-out. A process that leads a group, as in a shell with job control, keeps it.
pub fn leave_terminal() {
    let _ = rustix::process::setsid();
}

/// As [`stop_requested`], and also when standard input ends: for a process whose parent holds the other end
/// of a pipe, so that it never outlives it.
pub async fn stop_requested_or_stdin_closed() {
    let closed = async {
        let mut input = tokio::io::stdin();
        let mut buffer = [0; 64];
        while matches!(input.read(&mut buffer).await, Ok(read) if read > 0) {}
    };
    tokio::select! {
        () = stop_requested() => {}
        () = closed => {}
    }
}
