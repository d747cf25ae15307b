//! What a dead peer costs in lines of the log.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::fmt::{self, Write as _};
use std::sync::Mutex;
use std::time::Duration;

use support::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the lines that the node shows by default: `info,openraft=error`.
struct Lines(&'static Mutex<Vec<String>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let least = if metadata.target().starts_with("openraft") {
            Level::ERROR
        } else {
            Level::INFO
        };
        *metadata.level() <= least
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!(
            "{} {}:",
            event.metadata().level(),
            event.metadata().target()
        ));
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn lines_with(what: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    let found = lines.iter().filter(|line| line.contains(what));
    found.cloned().collect()
}

// Alone in its file: the subscriber is the whole process's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_peer_is_told_once_and_its_return_once() {
    tracing::subscriber::set_global_default(Lines(&LINES)).expect("the first");
    let mut cluster = Cluster::running(3, test_config()).await;
    let follower = cluster.follower().await;
    let leader = cluster.leader().await;
    LINES.lock().unwrap().clear();
    cluster.kill(follower).await;
    eventually("it is noticed", || {
        (!lines_with("a peer is not reachable").is_empty()).then_some(())
    })
    .await;
    // Long enough for a flood to show.
    for number in 0..30 {
        let command = register(&format!("w{number}"));
        propose(cluster.node(leader), command)
            .await
            .expect("committed")
            .reply
            .expect("accepted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let all = LINES.lock().unwrap().clone();
    assert_eq!(all.len(), 1, "{all:#?}");
    cluster.restart(follower).await;
    cluster.caught_up(follower).await;
    eventually("its return is noticed", || {
        (!lines_with("a peer is reachable again").is_empty()).then_some(())
    })
    .await;
    let of_peers = lines_with(" peer=");
    assert_eq!(of_peers.len(), 2, "{of_peers:#?}");
    assert!(of_peers[1].contains("away_ms="), "{of_peers:?}");
    cluster.no_failures();
}
