//! Marks: claims that the log was durable up to some place, kept where its end is not.
//!
//! A mark says that in one segment everything before an offset was durable when it was written.
//! What lies before that offset and is not whole was therefore lost after it was acknowledged.
//!
//! A mark has two slots, a page apart, and is written to one of them. Invariants:
//! - A mark claims only what was synced before it is written. It is never taken back.
//! - The slots take turns, and the file is synced between two marks. So the slot that is written
//!   is never the one with the durable mark, and a crash leaves at least one whole: two bad ones
//!   are damage.
//! - Its checksum starts from the seed of its segment. What an earlier life of a recycled file
//!   claimed does not count.

use std::io;

use crate::disk::{DiskFile, SECTOR_BYTES};

use super::format::{u32_at, u64_at};

/// What may be torn by one write.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Bytes of both slots.
pub(super) const MARKS_BYTES: u64 = 2 * PAGE_BYTES;

/// First bytes of a mark.
const MARK_MAGIC: [u8; 4] = *b"TWM1";
/// Bytes of a mark; zeros follow up to the sector boundary.
const MARK_BYTES: usize = 32;

/// All of a segment before an offset is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    /// The segment.
    pub(super) sequence: u32,
    /// The offset.
    pub(super) end: u64,
    /// The last batch before it.
    pub(super) batch: u64,
}

impl Mark {
    pub(super) fn encode(&self, seed: u32) -> [u8; SECTOR_BYTES] {
        let mut sector = [0_u8; SECTOR_BYTES];
        let fields = MARK_MAGIC
            .into_iter()
            .chain([0; 4])
            .chain(self.sequence.to_le_bytes())
            .chain([0; 4])
            .chain(self.end.to_le_bytes())
            .chain(self.batch.to_le_bytes());
        for (to, from) in sector.iter_mut().zip(fields) {
            *to = from;
        }
        let crc = checksum(&sector, seed);
        for (to, from) in sector.iter_mut().skip(4).zip(crc.to_le_bytes()) {
            *to = from;
        }
        sector
    }

    /// `None` if the bytes are not an undamaged mark with this seed.
    fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        let mut mark: [u8; MARK_BYTES] = bytes.get(..MARK_BYTES)?.try_into().ok()?;
        if !mark.starts_with(&MARK_MAGIC) {
            return None;
        }
        let crc = u32_at(&mark, 4)?;
        mark.get_mut(4..8)?.fill(0);
        if checksum(&mark, seed) != crc {
            return None;
        }
        Some(Self {
            sequence: u32_at(&mark, 8)?,
            end: u64_at(&mark, 16)?,
            batch: u64_at(&mark, 24)?,
        })
    }
}

fn checksum(bytes: &[u8], seed: u32) -> u32 {
    crc32c::crc32c_append(seed, bytes.get(..MARK_BYTES).unwrap_or_default())
}

/// The two slots of a mark in a file.
#[derive(Debug)]
pub(super) struct Marks {
    /// Offset of the first slot.
    at: u64,
    seed: u32,
    /// Where the next mark goes: not the slot with the durable one.
    slot: u64,
}

impl Marks {
    /// Of a file whose first slot holds a durable mark.
    pub(super) fn new(at: u64, seed: u32) -> Self {
        Self { at, seed, slot: 1 }
    }

    /// Reads the newest mark; `None` if both slots are bad. Whether it is durable is not known
    /// before it is [confirmed](Self::confirm).
    pub(super) async fn find<F: DiskFile>(
        file: &F,
        at: u64,
        seed: u32,
    ) -> io::Result<Option<(Self, Mark)>> {
        let mut newest: Option<(Mark, u64)> = None;
        for slot in 0..2 {
            let mut sector = [0_u8; SECTOR_BYTES];
            file.read_at(at + slot * PAGE_BYTES, &mut sector).await?;
            let found = Mark::decode(&sector, seed).map(|mark| (mark, slot));
            newest = newest.max(found);
        }
        Ok(newest.map(|(mark, slot)| {
            let marks = Self { at, seed, slot };
            (marks, mark)
        }))
    }

    /// Writes a mark. The caller syncs the file before it writes another.
    pub(super) async fn write<F: DiskFile>(&mut self, file: &F, mark: &Mark) -> io::Result<()> {
        let offset = self.at + self.slot * PAGE_BYTES;
        self.slot = 1 - self.slot;
        file.write_at(offset, &mark.encode(self.seed)).await
    }

    /// Makes durable what was [found](Self::find), by writing it again where it was; then the
    /// mark that is `wanted` instead. After that both slots are whole. Syncs the file.
    pub(super) async fn confirm<F: DiskFile>(
        &mut self,
        file: &F,
        found: &Mark,
        wanted: &Mark,
    ) -> io::Result<()> {
        for mark in [found, wanted] {
            self.write(file, mark).await?;
            file.sync_data().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::disk::{Disk, SimDisk};

    fn mark(batch: u64) -> Mark {
        Mark {
            sequence: 3,
            end: 12288 + 512 * batch,
            batch,
        }
    }

    #[test]
    fn marks_take_turns_the_newest_counts_and_a_seed_is_needed() {
        pollster::block_on(async {
            let disk = SimDisk::new(1);
            disk.create_dir_all(Path::new("/d")).await.unwrap();
            let file = disk.create(Path::new("/d/f")).await.unwrap();
            file.write_at(0, &mark(1).encode(5)).await.unwrap();
            let mut marks = Marks::new(0, 5);
            for batch in 2..7 {
                marks.write(&file, &mark(batch)).await.unwrap();
                let (_, found) = Marks::find(&file, 0, 5).await.unwrap().unwrap();
                assert_eq!(mark(batch), found);
                let before = (batch % 2) * PAGE_BYTES;
                let mut sector = [0; SECTOR_BYTES];
                file.read_at(before, &mut sector).await.unwrap();
                assert_eq!(Some(mark(batch - 1)), Mark::decode(&sector, 5));
            }
            assert!(Marks::find(&file, 0, 6).await.unwrap().is_none());

            // A start writes what it found again in its place, whatever the other slot holds.
            let (mut marks, found) = Marks::find(&file, 0, 5).await.unwrap().unwrap();
            let before = disk.changes();
            marks.confirm(&file, &found, &mark(9)).await.unwrap();
            assert_eq!(4, disk.changes() - before, "two writes, each synced");
            let mut sector = [0; SECTOR_BYTES];
            file.read_at(0, &mut sector).await.unwrap();
            assert_eq!(Some(mark(9)), Mark::decode(&sector, 5));
            file.read_at(PAGE_BYTES, &mut sector).await.unwrap();
            assert_eq!(Some(found), Mark::decode(&sector, 5));
        });
    }
}
