//! The disk of the operating system, by blocking calls.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use super::{Disk, DiskFile};

/// Zeros that [`DiskFile::allocate`] writes at a time.
const ZERO_CHUNK_BYTES: usize = 256 * 1024;

/// Real files. Calls block the thread that polls; see the module above.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

/// An open real file.
#[derive(Debug)]
pub struct RealFile {
    file: File,
}

fn names(dir: &Path, wanted: impl Fn(FileType) -> bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if wanted(entry.file_type()?)
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

impl Disk for RealDisk {
    type File = RealFile;

    async fn open(&self, path: &Path) -> io::Result<RealFile> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(RealFile { file })
    }

    async fn create(&self, path: &Path) -> io::Result<RealFile> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        Ok(RealFile { file })
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        names(dir, |kind| kind.is_file())
    }

    async fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        names(dir, |kind| kind.is_dir())
    }

    async fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    async fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

impl DiskFile for RealFile {
    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..)
            && !rest.is_empty()
        {
            match self.file.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    async fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    async fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        let zeros = vec![0_u8; ZERO_CHUNK_BYTES];
        let mut offset = self.file.metadata()?.len();
        while offset < len {
            let n = (len - offset).min(ZERO_CHUNK_BYTES as u64) as usize;
            self.file
                .write_all_at(zeros.get(..n).unwrap_or_default(), offset)?;
            offset += n as u64;
        }
        Ok(())
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
