//! A segment file that is read when the log is opened.

use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile, SECTOR_BYTES};

use super::format::{FORMAT_VERSION, NoHeader, SegmentHeader, seed};
use super::segment::live_name;
use super::{Corruption, WalError};

/// Bytes read at a time.
const WINDOW_BYTES: usize = 1024 * 1024;

/// An opened segment whose header is good.
pub(super) struct Opened<F> {
    pub(super) header: SegmentHeader,
    pub(super) path: PathBuf,
    pub(super) file: F,
    pub(super) seed: u32,
}

impl<F: DiskFile> Opened<F> {
    /// Opens a segment and checks its header, which was durable before the file had its name.
    pub(super) async fn open<D: Disk<File = F>>(
        disk: &D,
        dir: &Path,
        sequence: u32,
        index: Option<u64>,
    ) -> Result<Self, WalError> {
        let path = dir.join(live_name(sequence));
        let file = disk
            .open(&path)
            .await
            .map_err(|e| WalError::io("open", &path, e))?;
        let mut sector = [0_u8; SECTOR_BYTES];
        file.read_at(0, &mut sector)
            .await
            .map_err(|e| WalError::io("read", &path, e))?;
        let corrupt = |what| {
            WalError::Corrupt(Corruption {
                file: path.clone(),
                offset: 0,
                index,
                what,
            })
        };
        let header = SegmentHeader::decode(&sector).map_err(|error| match error {
            NoHeader::Damaged => corrupt("the header of the segment is damaged"),
            NoHeader::Version(found) => WalError::Version {
                file: path.clone(),
                found,
                known: FORMAT_VERSION,
            },
        })?;
        if header.sequence != sequence {
            return Err(corrupt(
                "the header of the segment belongs to another file name",
            ));
        }
        let len = file
            .len_bytes()
            .await
            .map_err(|e| WalError::io("measure", &path, e))?;
        if len != header.segment_bytes {
            return Err(corrupt(
                "the file does not have the length that its header says",
            ));
        }
        let seed = seed(header.salt, sequence);
        Ok(Self {
            header,
            path,
            file,
            seed,
        })
    }
}

/// Reads a file forward through a buffer.
pub(super) struct Window<'a, F> {
    segment: &'a Opened<F>,
    start: u64,
    buf: Vec<u8>,
}

impl<'a, F: DiskFile> Window<'a, F> {
    pub(super) fn new(segment: &'a Opened<F>) -> Self {
        Self {
            segment,
            start: 0,
            buf: Vec::new(),
        }
    }

    /// The `len` bytes at `offset`; fewer at the end of the file.
    pub(super) async fn get(&mut self, offset: u64, len: usize) -> Result<&[u8], WalError> {
        let held = self.start..=self.start + self.buf.len() as u64;
        if !held.contains(&offset) || offset + len as u64 > *held.end() {
            let left = self.segment.header.segment_bytes.saturating_sub(offset);
            let want = (len.max(WINDOW_BYTES) as u64).min(left) as usize;
            self.buf.resize(want, 0);
            let path = &self.segment.path;
            let got = self.segment.file.read_at(offset, &mut self.buf).await;
            self.buf
                .truncate(got.map_err(|e| WalError::io("read", path, e))?);
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        let end = (at + len).min(self.buf.len());
        Ok(self.buf.get(at..end).unwrap_or_default())
    }
}
