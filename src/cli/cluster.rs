//! `tenure cluster …`

use std::path::Path;

use serde::Deserialize;
use tenure_api::NodeId;
use tenure_api::cluster::{ClusterStatus, InitializeRequest, NewMember};

use super::args::{ClusterCommand, Global};
use super::connect::client;
use super::failure::{Exit, Failure};
use super::out::{Format, Out, Stop};
use super::table::{Table, instant, or_nothing};

/// Runs the command.
///
/// # Errors
/// Why it ended early.
pub(super) async fn run(
    command: ClusterCommand,
    global: &Global,
    out: &mut Out<'_>,
) -> Result<(), Stop> {
    match command {
        ClusterCommand::Status => {
            let status = client(global)?.cluster().await?;
            show(&status, out)
        }
        ClusterCommand::Initialize { members, config } => {
            let members = match config {
                Some(path) => members_of(&path)?,
                None => members
                    .iter()
                    .map(|text| member(text))
                    .collect::<Result<_, _>>()?,
            };
            let answer = client(global)?
                .initialize(&InitializeRequest { members })
                .await?;
            out.show(&answer, |answer| {
                let mut table = Table::of_fields();
                table.field("cluster", &answer.cluster_id);
                table
            })
        }
    }
}

/// The part of a node's configuration that tells the first members.
#[derive(Debug, Deserialize)]
struct NodeFile {
    members: Vec<NodeMember>,
}

#[derive(Debug, Deserialize)]
struct NodeMember {
    id: u64,
    http: String,
    peer: String,
}

fn members_of(path: &Path) -> Result<Vec<NewMember>, Failure> {
    let text =
        std::fs::read_to_string(path).map_err(|fault| Failure::io(path.display(), &fault))?;
    let file: NodeFile = toml::from_str(&text)
        .map_err(|fault| Failure::new(Exit::Refused, fault.to_string()).at(path.display()))?;
    let members = file.members.into_iter().map(|member| NewMember {
        id: NodeId(member.id),
        peer_address: member.peer,
        api_url: member.http,
    });
    Ok(members.collect())
}

fn member(text: &str) -> Result<NewMember, Failure> {
    let parts: Vec<&str> = text.split(',').collect();
    if let [id, peer, url] = parts.as_slice()
        && let Ok(id) = id.parse()
    {
        return Ok(NewMember {
            id,
            peer_address: (*peer).to_owned(),
            api_url: (*url).to_owned(),
        });
    }
    Err(Failure::usage(format!(
        "{text:?} must be ID,PEER-ADDRESS,API-URL such as 1,10.0.0.1:7421,http://10.0.0.1:7411"
    ))
    .at("--member"))
}

fn show(status: &ClusterStatus, out: &mut Out<'_>) -> Result<(), Stop> {
    out.show(status, details)?;
    if out.format() != Format::Table || status.members.is_empty() {
        return Ok(());
    }
    let mut table = Table::new([
        "NODE",
        "STATE",
        "VOTER",
        "API",
        "PEER",
        "MATCHED",
        "LAG",
        "LAST CONTACT",
    ]);
    for member in &status.members {
        table.row([
            member.id.to_string(),
            member.state.to_string(),
            if member.voter { "yes" } else { "no" }.to_owned(),
            member.api_url.clone(),
            member.peer_address.clone(),
            or_nothing(member.matched_index),
            or_nothing(member.lag_entries),
            or_nothing(member.last_contact_ms.map(|ms| format!("{ms} ms ago"))),
        ]);
    }
    out.text("\n")?;
    out.text(&table.render())
}

fn details(status: &ClusterStatus) -> Table {
    let mut table = Table::of_fields();
    let uninitialized = || "not initialized (tenure cluster initialize)".to_owned();
    table.field(
        "cluster",
        status.cluster_id.clone().unwrap_or_else(uninitialized),
    );
    table.field("generation", status.generation);
    table.field(
        "leader",
        match (status.leader, &status.leader_url) {
            (Some(leader), Some(url)) => format!("node {leader} at {url}"),
            (Some(leader), None) => format!("node {leader}"),
            (None, _) => "none: no decision is made".to_owned(),
        },
    );
    table.field("term", status.term);
    table.field("majority", if status.has_quorum { "yes" } else { "no" });
    table.field(
        "answered by",
        format!("node {} (version {})", status.node, status.version),
    );
    table.field("committed", status.committed_index);
    table.field("applied", status.applied_index);
    table.field("clock", instant(status.clock_at));
    let counts = &status.counts;
    table.field(
        "jobs",
        format!("{} ({} paused)", counts.jobs, counts.jobs_paused),
    );
    table.field("live runs", counts.runs_live);
    table.field(
        "tasks",
        format!(
            "{} running, {} queued, {} orphaned",
            counts.tasks_running, counts.tasks_queued, counts.tasks_orphaned
        ),
    );
    table.field("executors online", counts.executors_online);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_from_flags_or_from_a_nodes_configuration() {
        let expected = NewMember {
            id: NodeId(1),
            peer_address: "10.0.0.1:7421".into(),
            api_url: "http://10.0.0.1:7411".into(),
        };
        let text = "1,10.0.0.1:7421,http://10.0.0.1:7411";
        assert_eq!(member(text).unwrap(), expected);
        for bad in ["", "1", "x,a:1,http://b", "1,a:1,http://b,c"] {
            assert_eq!(member(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tenure.toml");
        let config = "node_id = 1\n[listen]\nhttp = \"x\"\n[[members]]\nid = 1\n\
                      http = \"http://10.0.0.1:7411\"\npeer = \"10.0.0.1:7421\"\n";
        std::fs::write(&path, config).unwrap();
        assert_eq!(members_of(&path).unwrap(), [expected]);
    }
}
