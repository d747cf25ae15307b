//! HA-8 and damaged disks: a node that lost or cannot trust its data says so and does not vote.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use tenure_api::JobName;
use tenure_api::runs::{Consistency, RunState};

use crate::support::{
    Cluster, Settings, eventually, fires_of, holds, in_process, job, output, runs_of, tenure,
};

const RUNS: usize = 40;

/// A cluster with some past.
async fn with_a_past(settings: Settings) -> (Cluster, JobName) {
    let mut cluster = Cluster::start(settings).await;
    let executor = in_process(&cluster, "counter", 16);
    let spec = job(
        "name: past\ntrigger: { manual: true }\noverlap: allow\nqueue_limit: 1000\n\
         history: { keep: 10000 }\ntask: { capability: count }\n",
    );
    let name = cluster.put(spec).await;
    for _ in 0..RUNS {
        cluster.trigger(&name).await;
    }
    cluster.counter_is("runs_live", |live| live == 0.0).await;
    drop(executor);
    (cluster, name)
}

/// Starts a node that must refuse, and gives back what it says.
async fn refusal(cluster: &mut Cluster, place: usize) -> String {
    let process = &mut cluster.nodes[place].process;
    let said_before = process.log().len();
    process.start();
    let status = process.ended().await;
    assert_eq!(status.code(), Some(1), "{}", process.last_words());
    process.log()[said_before..].to_owned()
}

async fn the_others_serve(cluster: &mut Cluster, name: &JobName) {
    let run = cluster.trigger(name).await;
    assert!(
        !cluster.run(run).await.state.is_final()
            || cluster.run(run).await.state == RunState::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_8_an_emptied_disk_is_not_started_under_its_old_id() {
    let (mut cluster, name) = with_a_past(Settings::light()).await;
    let place = cluster.follower().await;
    cluster.kill(place);
    let data = cluster.nodes[place].data.clone();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::create_dir(&data).unwrap();
    let said = refusal(&mut cluster, place).await;
    let id = cluster.nodes[place].id;
    assert!(
        said.contains(&format!("remove node {id} from the cluster")),
        "{said}"
    );
    assert!(said.contains("under a new id"), "{said}");
    assert_eq!(
        std::fs::read_dir(&data)
            .unwrap()
            .filter(|entry| !is_lock(entry))
            .count(),
        0,
        "nothing was made"
    );

    // Nor does it get a new identity by mistake, as long as another node can tell.
    let file = cluster.dir.path().join(format!("node{id}.toml"));
    let mut init = Command::new(tenure());
    init.args(["node", "init", "--config"]).arg(&file);
    let refused = output(init).await;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{said}");
    assert!(
        said.contains("the cluster was made already") && said.contains("--never-ran"),
        "{said}"
    );
    assert!(refusal(&mut cluster, place).await.contains("is empty"));

    // A folder that is gone altogether is the same loss.
    std::fs::remove_dir_all(&data).unwrap();
    let said = refusal(&mut cluster, place).await;
    assert!(said.contains("under a new id"), "{said}");
    the_others_serve(&mut cluster, &name).await;
}

fn is_lock(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry
        .as_ref()
        .is_ok_and(|entry| entry.file_name().to_string_lossy().contains("lock"))
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_8_a_log_that_is_gone_is_not_begun_anew() {
    let (mut cluster, name) = with_a_past(Settings::light()).await;
    let place = cluster.follower().await;
    cluster.kill(place);
    for segment in log_segments(&cluster.nodes[place].data) {
        std::fs::remove_file(segment).unwrap();
    }
    let said = refusal(&mut cluster, place).await;
    assert!(
        said.contains("segment file is missing") && said.contains("under a new id"),
        "{said}"
    );

    // The whole folder, and started again by whatever keeps services running: refused each time.
    std::fs::remove_dir_all(cluster.nodes[place].data.join("log")).unwrap();
    for _ in 0..2 {
        let said = refusal(&mut cluster, place).await;
        assert!(
            said.contains("its log is gone") && said.contains("under a new id"),
            "{said}"
        );
    }
    the_others_serve(&mut cluster, &name).await;
}

/// The segments in use, the oldest first.
fn log_segments(data: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = files_below(data)
        .into_iter()
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("wal-"))
        })
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{}", data.display());
    found
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.append(&mut files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Turns one bit around.
fn flip(path: &Path, offset: u64) {
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.read_exact(&mut byte).unwrap();
    byte[0] ^= 0x10;
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.write_all(&byte).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_amid_the_log_is_named_and_nothing_is_cut() {
    let (mut cluster, name) = with_a_past(Settings::light()).await;
    let place = cluster.follower().await;
    cluster.kill(place);
    let segment = log_segments(&cluster.nodes[place].data).remove(0);
    let bytes = std::fs::read(&segment).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    // Between the pieces there is filling, which means nothing: the bit is in a byte that means something.
    let place_in_file = (used / 2..used).find(|place| bytes[*place] != 0).unwrap();
    let offset = u64::try_from(place_in_file).unwrap();
    flip(&segment, offset);
    let damaged = std::fs::read(&segment).unwrap();
    let said = refusal(&mut cluster, place).await;
    let file = segment.file_name().unwrap().to_string_lossy().into_owned();
    assert!(said.contains(&file), "{said}");
    let named = said
        .split("at offset ")
        .nth(1)
        .unwrap_or_else(|| panic!("no offset: {said}"));
    let digits: String = named.chars().take_while(char::is_ascii_digit).collect();
    let named: u64 = digits.parse().unwrap();
    assert!(
        named <= offset,
        "the damaged piece begins at or before the bit: {named}, {offset}"
    );
    assert!(said.contains("replace this node"), "{said}");
    assert!(
        std::fs::read(&segment).unwrap() == damaged,
        "nothing was cut or mended"
    );
    the_others_serve(&mut cluster, &name).await;

    // The bit back in its place, all is well: the bytes around it were left alone.
    flip(&segment, offset);
    cluster.restart(place);
    cluster.all_ready().await;
    cluster.all_alike().await;
}

async fn archive_is_rebuilt(mut cluster: Cluster, name: JobName) {
    let place = cluster.follower().await;
    let status = cluster.nodes[place].process.terminate().await;
    assert_eq!(status.code(), Some(0));
    let archive = cluster.nodes[place].data.join("archive");
    let largest = files_below(&archive)
        .into_iter()
        .max_by_key(|path| std::fs::metadata(path).unwrap().len())
        .unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    for byte in bytes.iter_mut().step_by(37) {
        *byte ^= 0x5a;
    }
    std::fs::write(&largest, bytes).unwrap();
    cluster.restart(place);
    cluster.all_ready().await;
    let log = cluster.nodes[place].process.log();
    assert!(
        log.contains("the archive is damaged") && log.contains("moved_to"),
        "{log}"
    );
    let client = cluster.client();
    let runs = runs_of(&client, &name, Consistency::Linearizable).await;
    assert!(runs.len() >= RUNS);
    let own = cluster.client_of(place);
    eventually("the archive has all runs again", async || {
        let own = runs_of(&own, &name, Consistency::Stale).await;
        holds(
            own.len() == runs.len(),
            format!("{} of {}", own.len(), runs.len()),
        )?;
        holds(own == runs, "they differ")
    })
    .await;
    let fires = fires_of(&client, &name, Consistency::Linearizable).await;
    assert_eq!(fires_of(&own, &name, Consistency::Stale).await, fires);
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_8_a_damaged_archive_is_rebuilt_from_the_log() {
    let (cluster, name) = with_a_past(Settings::light()).await;
    archive_is_rebuilt(cluster, name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_8_a_damaged_archive_is_rebuilt_from_the_leader_when_the_log_is_purged() {
    let settings = Settings {
        light: true,
        ..Settings::frequent_snapshots()
    };
    let (mut cluster, name) = with_a_past(settings).await;
    // More, until the log has lost its beginning.
    let executor = in_process(&cluster, "counter", 16);
    let place = cluster.leader().await;
    let wire = cluster.wire(place);
    eventually("the log is purged", async || {
        futures::future::join_all((0..20).map(|_| cluster.trigger(&name))).await;
        let purged = wire.metric("purged_index").await?;
        holds(purged > 0.0, purged)
    })
    .await;
    cluster.counter_is("runs_live", |live| live == 0.0).await;
    drop(executor);
    archive_is_rebuilt(cluster, name).await;
}
