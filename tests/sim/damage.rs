//! Damage of what was durable on a disk: a bit that flips, a write that lands elsewhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_storage::disk::{Disk as _, SimDisk};

use crate::chance;
use crate::cluster::Condition;
use crate::faults::Storm;
use crate::network::name;
use crate::node::{Crash, DIR};
use crate::scope::Process;
use crate::tell;

/// A place in a file.
type Place = (PathBuf, u64);

impl Storm {
    /// Damages a node, if a majority stays sound; whether it did.
    pub(crate) async fn damage(self: &Arc<Self>) -> bool {
        let node = self.node();
        let up = self.cluster.condition(node) == Condition::Up;
        let down = self.cluster.condition(node) == Condition::Down;
        match chance::between(0, 3) {
            0 if up => self.misdirect(node).await,
            1 if up => self.flip(node, "flipped bit, node running").await,
            _ if (up || down) && self.cluster.may_be_damaged(node) => {
                if up {
                    let crash = chance::one_of(&[Crash::Kill, Crash::PowerLoss]);
                    self.cluster.crash(node, crash);
                }
                let damaged = self.flip(node, "flipped bit, node down").await;
                self.restart_later(node, chance::between(500, 5_000));
                damaged
            }
            _ => false,
        }
    }

    async fn flip(self: &Arc<Self>, node: Process, kind: &'static str) -> bool {
        let disk = self.cluster.disk(node);
        let found = match chance::between(0, 10) {
            0..6 => in_the_log(&disk).await,
            6..9 => in_a_snapshot(&disk).await,
            // It is read at the start only.
            _ => in_the_identity(&disk),
        };
        let Some((path, offset)) = found else {
            return false;
        };
        if !self.cluster.claim_damage(node) {
            return false;
        }
        self.count(kind);
        let mask = 1 << chance::between(0, 8);
        tell!(
            "{}: a bit flips in {} at {offset}",
            name(node),
            path.display()
        );
        disk.flip(&path, offset, mask)
            .expect("the place was found on this disk");
        if self.cluster.condition(node) == Condition::Up && chance::happens(500) {
            self.crash_later(node, chance::between(1_000, 8_000));
        }
        true
    }

    /// The next write to the newest segment lands amid what was durable, and not where it belongs.
    async fn misdirect(self: &Arc<Self>, node: Process) -> bool {
        let disk = self.cluster.disk(node);
        let Some((path, end)) = newest_segment(&disk).await else {
            return false;
        };
        let sectors = (end - DATA_START) / SECTOR;
        if sectors == 0 || !self.cluster.claim_damage(node) {
            return false;
        }
        let offset = DATA_START + chance::between(0, sectors) * SECTOR;
        self.count_when_struck("misdirected write", node, |struck| struck.misdirected);
        tell!(
            "{}: the next write to {} lands at {offset}",
            name(node),
            path.display()
        );
        disk.misdirect_next_write(&path, offset);
        if chance::happens(500) {
            self.crash_later(node, chance::between(1_000, 8_000));
        }
        true
    }
}

/// Where the first batch of a segment is; what a sector is. The simulation reads as much of the log's format
/// as it takes to know what a mark covers; were it to change, these faults would never happen, and a test
/// would say so.
const DATA_START: u64 = 12_288;
const SECTOR: u64 = 512;
const MARKS: [usize; 2] = [4_096, 8_192];

/// Up to where a segment is certainly durable, as both its marks say: the older one was synced before the
/// newer one was written.
fn durable_end(segment: &[u8]) -> Option<u64> {
    let sequence = segment.get(12..16)?;
    let marks = MARKS.map(|at| {
        let mark = segment.get(at..at + 32)?;
        let whole = mark.starts_with(b"TWM1") && mark.get(8..12) == Some(sequence);
        let end = mark.get(16..24).filter(|_| whole)?;
        Some(u64::from_le_bytes(end.try_into().ok()?))
    });
    let [Some(one), Some(other)] = marks else {
        return None;
    };
    Some(one.min(other)).filter(|end| *end > DATA_START)
}

async fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    let dir = Path::new(DIR).join("log");
    let names = disk.list(&dir).await.unwrap_or_default();
    let live = |name: &String| name.starts_with("wal-");
    let names = names.into_iter().filter(live);
    names.map(|name| dir.join(name)).collect()
}

async fn newest_segment(disk: &SimDisk) -> Option<Place> {
    let path = segments(disk).await.pop()?;
    let end = durable_end(&disk.contents(&path).ok()?)?;
    Some((path, end))
}

async fn in_the_log(disk: &SimDisk) -> Option<Place> {
    let segments = segments(disk).await;
    let path = segments
        .get(chance::between(0, segments.len() as u64) as usize)?
        .clone();
    let bytes = disk.contents(&path).ok()?;
    let end = durable_end(&bytes)?;
    // A zero may be padding, which nobody reads.
    let somewhere = (0..20).map(|_| chance::between(DATA_START, end));
    let mut used = somewhere.filter(|at| bytes.get(*at as usize).is_some_and(|byte| *byte != 0));
    let offset = used.next()?;
    Some((path, offset))
}

/// The newest snapshot of a node, and its length.
pub async fn newest_snapshot(disk: &SimDisk) -> Option<Place> {
    let dir = Path::new(DIR).join("snapshots");
    let names = disk.list(&dir).await.unwrap_or_default();
    let path = dir.join(names.iter().rfind(|name| name.ends_with(".snap"))?);
    let bytes = disk.contents(&path).ok()?.len() as u64;
    Some((path, bytes))
}

async fn in_a_snapshot(disk: &SimDisk) -> Option<Place> {
    let (path, bytes) = newest_snapshot(disk).await?;
    Some((path, chance::between(0, bytes)))
}

fn in_the_identity(disk: &SimDisk) -> Option<Place> {
    let path = Path::new(DIR).join("identity");
    let bytes = disk.contents(&path).ok()?.len() as u64;
    Some((path, chance::between(0, bytes)))
}
