//! `tenure dev`: a whole cluster on this machine, with an executor and real jobs, and one screen that says
//! what is going on.
//!
//! Everything is as in production: three node processes with their own folders and real disks, talking over
//! real sockets with generated secrets, and an executor process that logs in with a token. Only the place is
//! small. A process that dies is started again, so that one may kill the leader and look.
//!
//! Stopping keeps the folder; starting again goes on where it was.

mod examples;
mod layout;
mod processes;
mod screen;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use tenure_api::NodeId;
use tenure_api::cluster::{ClusterStatus, InitializeRequest, NewMember};
use tenure_sdk::{Client, Error};
use tokio::time::{Instant, sleep, timeout_at};

use layout::Layout;
use processes::Fleet;

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct DevOptions {
    /// Where everything is kept.
    pub dir: PathBuf,
    /// Where the ports are counted from: HTTP is on the three after it, peers are ten above those. `None`: as
    /// at the first start.
    pub base_port: Option<u16>,
    /// A folder of job files to apply, and of what they call, in place of the program's own.
    pub examples: Option<PathBuf>,
    /// Print lines instead of a screen.
    pub plain: bool,
}

/// Why it did not work.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DevError(pub String);

impl DevError {
    pub(crate) fn new(what: &str, why: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}

/// How long the cluster may take to come up. A slow disk and a busy machine included.
const START: Duration = Duration::from_secs(60);
/// Where the path of the examples is told to their jobs.
const EXAMPLES_VARIABLE: &str = "TENURE_EXAMPLES";

/// Runs until Ctrl-C or SIGTERM, then stops everything in good order.
///
/// # Errors
/// Says which step failed and what to look at.
pub async fn run(options: DevOptions) -> Result<(), DevError> {
    let layout = Layout::prepare(&options).await?;
    let mut out = std::io::stdout();
    let _ = writeln!(out, "starting three nodes in {} ...", options.dir.display());
    let mut fleet = Fleet::start(&layout)?;
    let stopped = crate::signals::stop_requested();
    tokio::pin!(stopped);
    let result = tokio::select! {
        result = live(&layout, &options, &mut fleet) => result,
        () = &mut stopped => Ok(()),
    };
    let _ = writeln!(out, "\nstopping ...");
    fleet.stop().await;
    if result.is_ok() {
        let _ = writeln!(
            out,
            "stopped. Everything is kept in {}; `tenure dev` goes on from there.",
            options.dir.display()
        );
    }
    result
}

async fn live(layout: &Layout, options: &DevOptions, fleet: &mut Fleet) -> Result<(), DevError> {
    let client = layout.client()?;
    initialize(layout, &client, fleet).await?;
    fleet.start_executor(layout)?;
    layout
        .examples
        .apply(&layout.examples_record, &client)
        .await?;
    screen::show(layout, options, &client, fleet).await
}

/// Makes the cluster on the first start and waits until it has a leader.
async fn initialize(
    layout: &Layout,
    client: &Client,
    fleet: &mut Fleet,
) -> Result<ClusterStatus, DevError> {
    let deadline = Instant::now() + START;
    let members = layout
        .nodes
        .iter()
        .map(|node| NewMember {
            id: NodeId(node.id),
            peer_address: node.peer_address(),
            api_url: node.url(),
        })
        .collect();
    let request = InitializeRequest { members };
    let mut last = String::from("no answer yet");
    loop {
        fleet.check_nodes()?;
        let step = async {
            let status = client.cluster().await?;
            if status.leader.is_some() && status.initialized {
                return Ok(Some(status));
            }
            // Only a cluster that was never made is made: the others find each other.
            if status.members.is_empty() && status.term.0 == 0 {
                client.initialize(&request).await?;
            }
            Ok::<_, Error>(None)
        };
        match timeout_at(deadline, step).await {
            Ok(Ok(Some(status))) => return Ok(status),
            Ok(Ok(None)) => last = "no leader yet".into(),
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            return Err(DevError(format!(
                "the cluster did not come up in {} s: {last}. Look at {}",
                START.as_secs(),
                layout.logs()
            )));
        }
        sleep(Duration::from_millis(100)).await;
    }
}
