//! Reading a snapshot: all of it to check it, then once more to use it.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::disk::{Disk, DiskFile};

use super::format::{
    BLOCK_HEADER_BYTES, BLOCK_TARGET_BYTES, BlockHeader, BlockKind, FOOTER_BYTES, Footer,
    PREFIX_BYTES, RECORD_HEADER_BYTES, decode_prefix, split_record,
};
use super::{
    MAX_HEADER_BYTES, MAX_RECORD_BYTES, SnapshotError, SnapshotId, SnapshotInfo, io_error,
};

/// Largest body that a writer makes.
const MAX_BODY_BYTES: usize = BLOCK_TARGET_BYTES + RECORD_HEADER_BYTES + MAX_RECORD_BYTES;

/// Streams the records of a snapshot that was checked as a whole before.
pub struct SnapshotReader<D: Disk> {
    blocks: Blocks<D>,
    info: SnapshotInfo,
    section: u32,
    body: Bytes,
    left: u32,
}

impl<D: Disk> SnapshotReader<D> {
    /// Checks the whole file, then is ready to stream it.
    pub(super) async fn open(disk: &D, path: &Path, id: SnapshotId) -> Result<Self, SnapshotError> {
        let info = verify(disk, path, id).await?;
        let mut blocks = Blocks::open(disk, path).await?;
        blocks.header().await?;
        Ok(Self {
            blocks,
            info,
            section: 0,
            body: Bytes::new(),
            left: 0,
        })
    }

    /// What snapshot this is.
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// The next record and its section; `None` at the end.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`] if the file changed since it was checked, [`SnapshotError::Io`].
    pub async fn next(&mut self) -> Result<Option<(u32, Bytes)>, SnapshotError> {
        while self.left == 0 {
            let Block { header, bytes } = self.blocks.next().await?;
            if header.kind == BlockKind::Footer {
                return Ok(None);
            }
            self.section = header.section;
            self.left = header.records;
            self.body = bytes.slice(BLOCK_HEADER_BYTES..);
        }
        let Some((record, rest)) = split_record(&self.body) else {
            return Err(self.blocks.damaged("a record does not fit its block"));
        };
        let (record, rest) = (self.body.slice_ref(record), self.body.slice_ref(rest));
        self.body = rest;
        self.left -= 1;
        Ok(Some((self.section, record)))
    }

    /// Reads raw bytes of the file, to send them to a peer. Fewer than `len` at the end only.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub async fn read_chunk(&self, offset: u64, len: usize) -> Result<Vec<u8>, SnapshotError> {
        let mut chunk = vec![0; len];
        let read = self.blocks.file.read_at(offset, &mut chunk).await;
        chunk.truncate(read.map_err(io_error("read", &self.blocks.path))?);
        Ok(chunk)
    }
}

/// Reads the whole file once and checks everything.
pub(super) async fn verify<D: Disk>(
    disk: &D,
    path: &Path,
    id: SnapshotId,
) -> Result<SnapshotInfo, SnapshotError> {
    let mut blocks = Blocks::open(disk, path).await?;
    let header = blocks.header().await?;
    let (mut count, mut records) = (0, 0);
    loop {
        let end = blocks.offset;
        let hash = blocks.hash.clone();
        let Block {
            header: block,
            bytes,
        } = blocks.next().await?;
        let body = bytes.get(BLOCK_HEADER_BYTES..).unwrap_or_default();
        if block.kind == BlockKind::Data {
            check_records(body, block.records).ok_or_else(|| {
                blocks.offset = end;
                blocks.damaged("the records of a block do not fit it")
            })?;
            count += 1;
            records += u64::from(block.records);
            continue;
        }
        let found = Footer {
            sha256: hash.finalize().into(),
            bytes: end,
            blocks: count,
            records,
        };
        if Footer::decode(body) != Some(found) {
            blocks.offset = end;
            return Err(blocks.damaged("the footer does not match what is before it"));
        }
        let file_bytes = blocks.offset;
        if blocks.len != file_bytes {
            return Err(blocks.damaged("there are bytes behind the footer"));
        }
        let (path, sha256) = (path.to_owned(), found.sha256);
        return Ok(SnapshotInfo {
            id,
            path,
            header,
            file_bytes,
            records,
            sha256,
        });
    }
}

fn check_records(mut body: &[u8], records: u32) -> Option<()> {
    for _ in 0..records {
        (_, body) = split_record(body)?;
    }
    body.is_empty().then_some(())
}

/// A checked block.
struct Block {
    header: BlockHeader,
    bytes: Bytes,
}

/// Reads a file block by block and hashes what it read.
struct Blocks<D: Disk> {
    path: PathBuf,
    file: D::File,
    len: u64,
    offset: u64,
    hash: Sha256,
}

impl<D: Disk> Blocks<D> {
    async fn open(disk: &D, path: &Path) -> Result<Self, SnapshotError> {
        let file = match disk.open(path).await {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(SnapshotError::NotFound {
                    path: path.to_owned(),
                });
            }
            Err(e) => return Err(io_error("open", path)(e)),
        };
        let len = file.len_bytes().await.map_err(io_error("measure", path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            len,
            offset: 0,
            hash: Sha256::new(),
        })
    }

    fn damaged(&self, what: &'static str) -> SnapshotError {
        SnapshotError::Damaged {
            path: self.path.clone(),
            offset: self.offset,
            what,
        }
    }

    /// Reads `len` bytes at the current offset plus `ahead`.
    async fn peek(&self, ahead: usize, len: usize) -> Result<Vec<u8>, SnapshotError> {
        let at = self.offset + ahead as u64;
        if at + len as u64 > self.len {
            return Err(self.damaged("the file ends early"));
        }
        let mut bytes = vec![0; len];
        let read = self
            .file
            .read_at(at, &mut bytes)
            .await
            .map_err(io_error("read", &self.path))?;
        if read < len {
            return Err(self.damaged("the file ends early"));
        }
        Ok(bytes)
    }

    fn advance(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.offset += bytes.len() as u64;
    }

    async fn header(&mut self) -> Result<Vec<u8>, SnapshotError> {
        let prefix = self.peek(0, PREFIX_BYTES).await?;
        let Some((len, crc)) = decode_prefix(&prefix) else {
            return Err(self.damaged("it is not a snapshot, or of an unknown format"));
        };
        if len as usize > MAX_HEADER_BYTES {
            return Err(self.damaged("the length of the header is impossible"));
        }
        let header = self.peek(PREFIX_BYTES, len as usize).await?;
        if crc32c::crc32c(&header) != crc {
            return Err(self.damaged("the header does not match its checksum"));
        }
        self.advance(&prefix);
        self.advance(&header);
        Ok(header)
    }

    /// The next block, the footer included.
    async fn next(&mut self) -> Result<Block, SnapshotError> {
        let mut bytes = self.peek(0, BLOCK_HEADER_BYTES).await?;
        let Some(header) = BlockHeader::decode(&bytes) else {
            return Err(self.damaged("no block starts here"));
        };
        let body_bytes = header.body_bytes as usize;
        if body_bytes > MAX_BODY_BYTES {
            return Err(self.damaged("the length of a block is impossible"));
        }
        bytes.extend(self.peek(BLOCK_HEADER_BYTES, body_bytes).await?);
        if !header.fits(&bytes) {
            return Err(self.damaged("a block does not match its checksum"));
        }
        self.advance(&bytes);
        Ok(Block {
            header,
            bytes: Bytes::from(bytes),
        })
    }
}

/// Smallest file that can be a snapshot.
pub(super) const MIN_FILE_BYTES: u64 = (PREFIX_BYTES + FOOTER_BYTES) as u64;
