//! A disk in memory that behaves as badly as real ones may, and the same way for the same seed.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::faults::{Change, Random, after_crash};
use super::{Disk, DiskFile};

/// What an operation does; told to the [`DelayHook`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskOp {
    /// Open or create.
    Open,
    /// Read from a file, or list a folder.
    Read,
    /// Write, grow or shrink a file.
    Write,
    /// Sync a file.
    Sync,
    /// Rename, remove, create a folder.
    Name,
    /// Sync a folder.
    SyncDir,
    /// Told after a sync that failed.
    SyncFailed,
    /// Nothing but waiting.
    Pause,
}

/// Called before each operation with its kind and size in bytes (of a pause: its length in
/// microseconds); the operation waits for the future. Without a hook nothing takes time. A simulator answers with a sleep in virtual time.
pub type DelayHook =
    Arc<dyn Fn(DiskOp, u64) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A simulated disk. Clones share it.
///
/// Each file has the bytes that readers see (the cache) and those on the medium. Only
/// [`crash`](SimDisk::crash) tells the two apart: it returns a new disk with what the medium
/// kept, and makes this one dead.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Mutex<State>>,
}

/// An open file of a [`SimDisk`].
pub struct SimFile {
    shared: Arc<Mutex<State>>,
    inode: u64,
    /// Keeps a removed file as long as it is open.
    _open: Arc<()>,
}

/// How often the faults of a disk have taken effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Struck {
    /// Syncs that failed.
    pub syncs: u64,
    /// Changes that found no room.
    pub refused: u64,
    /// Writes that landed elsewhere.
    pub misdirected: u64,
}

#[derive(Default, Clone)]
struct Inode {
    open: Arc<()>,
    cached: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

/// A change of a folder that is not yet durable.
#[derive(Clone)]
enum NameChange {
    Link(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Link(path, inode) => {
                names.insert(path.clone(), *inode);
            }
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Unlink(path) => {
                names.remove(path);
            }
        }
    }

    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Link(path, _) | Self::Unlink(path) | Self::Rename(_, path) => path.parent(),
        }
    }
}

struct State {
    random: Random,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    pending_names: Vec<NameChange>,
    dirs: BTreeSet<PathBuf>,
    capacity_bytes: u64,
    changes: u64,
    crash_after: Option<u64>,
    dead: bool,
    fail_sync_in: Option<u64>,
    misdirect: Option<(PathBuf, u64)>,
    struck: Struck,
    sync_error_ppm: u32,
    flip_bit_ppm: u32,
    delay: Option<DelayHook>,
}

impl SimDisk {
    /// An empty disk without a limit of size; `seed` decides all that is random.
    pub fn new(seed: u64) -> Self {
        Self {
            shared: Arc::new(Mutex::new(State {
                random: Random::new(seed),
                inodes: BTreeMap::new(),
                next_inode: 0,
                names: BTreeMap::new(),
                durable_names: BTreeMap::new(),
                pending_names: Vec::new(),
                dirs: BTreeSet::new(),
                capacity_bytes: u64::MAX,
                changes: 0,
                crash_after: None,
                dead: false,
                fail_sync_in: None,
                misdirect: None,
                struck: Struck::default(),
                sync_error_ppm: 0,
                flip_bit_ppm: 0,
                delay: None,
            })),
        }
    }

    /// Sets what each operation waits for.
    pub fn set_delay(&self, delay: Option<DelayHook>) {
        self.lock().delay = delay;
    }

    /// Sets the size of the disk; growing files beyond it fails with `StorageFull`.
    pub fn set_capacity_bytes(&self, capacity_bytes: u64) {
        self.lock().capacity_bytes = capacity_bytes;
    }

    /// Number of operations so far that change something or sync it.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// The power fails after change number `count` (counted by [`changes`](Self::changes)): that
    /// one is done, and every operation after it fails.
    pub fn crash_after(&self, count: u64) {
        let mut state = self.lock();
        state.crash_after = Some(count);
        state.dead |= state.changes >= count;
    }

    /// Whether its power has failed, or its process was ended.
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// How often its faults have taken effect since it was made or found after a crash.
    pub fn struck(&self) -> Struck {
        self.lock().struck
    }

    /// Fails one sync (file or folder): the `nth` from now, 0 the next. What it should have made
    /// durable is partly lost, although readers go on seeing it.
    pub fn fail_sync(&self, nth: u64) {
        self.lock().fail_sync_in = Some(nth);
    }

    /// Fails each sync with this probability, in a million.
    pub fn set_sync_error_ppm(&self, ppm: u32) {
        self.lock().sync_error_ppm = ppm;
    }

    /// Flips one bit in what is written with this probability a write, in a million.
    pub fn set_flip_bit_ppm(&self, ppm: u32) {
        self.lock().flip_bit_ppm = ppm;
    }

    /// The next write to this file lands at `offset` instead, silently.
    pub fn misdirect_next_write(&self, path: &Path, offset: u64) {
        self.lock().misdirect = Some((path.to_owned(), offset));
    }

    /// Flips bits of one byte, on the medium and in the cache.
    ///
    /// # Errors
    /// If there is no such byte.
    pub fn flip(&self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        let mut state = self.lock();
        let inode = state.find(path)?;
        let inode = state.inode_mut(inode)?;
        let at = offset as usize;
        let cached = inode
            .cached
            .get_mut(at)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        *cached ^= mask;
        if let Some(durable) = inode.durable.get_mut(at) {
            *durable ^= mask;
        }
        Ok(())
    }

    /// The bytes of a file as readers see them.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.lock();
        let inode = state.find(path)?;
        Ok(state.inode(inode)?.cached.clone())
    }

    /// Cuts the power: returns the disk as found at the next start, where a random part of what
    /// was not synced survived. This one is dead from now on. Delay and capacity are kept, other
    /// faults are not.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let mut state = self.lock();
        state.dead = true;
        let mut random = Random::new(seed);
        let mut names = state.durable_names.clone();
        let kept = random.below(state.pending_names.len() as u64 + 1) as usize;
        state
            .pending_names
            .iter()
            .take(kept)
            .for_each(|change| change.apply(&mut names));
        let mut inodes = BTreeMap::new();
        for inode in names.values() {
            if let Some(old) = state.inodes.get(inode) {
                let bytes = after_crash(old.durable.clone(), &old.pending, &mut random);
                let new = Inode {
                    cached: bytes.clone(),
                    durable: bytes,
                    ..Inode::default()
                };
                inodes.insert(*inode, new);
            }
        }
        let next = Self::new(random.next());
        {
            let mut fresh = next.lock();
            fresh.inodes = inodes;
            fresh.next_inode = state.next_inode;
            fresh.durable_names = names.clone();
            fresh.names = names;
            fresh.dirs = state.dirs.clone();
            fresh.capacity_bytes = state.capacity_bytes;
            fresh.delay = state.delay.clone();
        }
        next
    }

    /// Ends the process but not the machine: nothing is lost, the old handles are dead. What a
    /// failed sync dropped is still seen by readers.
    #[must_use]
    pub fn kill(&self, seed: u64) -> Self {
        let mut state = self.lock();
        state.dead = true;
        let next = Self::new(seed);
        {
            let mut fresh = next.lock();
            fresh.inodes = state.inodes.clone();
            fresh.next_inode = state.next_inode;
            fresh.durable_names = state.durable_names.clone();
            fresh.pending_names = state.pending_names.clone();
            fresh.names = state.names.clone();
            fresh.dirs = state.dirs.clone();
            fresh.capacity_bytes = state.capacity_bytes;
            fresh.delay = state.delay.clone();
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.shared)
    }
}

fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn wait(shared: &Mutex<State>, op: DiskOp, bytes: u64) {
    let delay = lock(shared).delay.clone();
    if let Some(delay) = delay {
        delay(op, bytes).await;
    }
}

/// The outcome of a sync; of a failed one the [`DelayHook`] is told.
async fn told(shared: &Mutex<State>, failed: bool) -> io::Result<()> {
    if !failed {
        return Ok(());
    }
    wait(shared, DiskOp::SyncFailed, 0).await;
    Err(io::Error::other("simulated sync failure"))
}

impl State {
    fn alive(&self) -> io::Result<()> {
        if self.dead {
            Err(io::Error::other("simulated power loss"))
        } else {
            Ok(())
        }
    }

    /// Counts a change; the caller then does it.
    fn change(&mut self) -> io::Result<()> {
        self.alive()?;
        self.changes += 1;
        if self.crash_after.is_some_and(|count| self.changes >= count) {
            self.dead = true;
        }
        Ok(())
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        self.names.get(path).copied().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} not found", path.display()),
            )
        })
    }

    fn inode(&self, inode: u64) -> io::Result<&Inode> {
        self.inodes
            .get(&inode)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn inode_mut(&mut self, inode: u64) -> io::Result<&mut Inode> {
        self.inodes
            .get_mut(&inode)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
    }

    /// Frees files that have no name, now or after a crash, and no handle.
    fn forget_removed(&mut self) {
        let named: BTreeSet<u64> = self
            .names
            .values()
            .chain(self.durable_names.values())
            .copied()
            .collect();
        self.inodes
            .retain(|inode, file| named.contains(inode) || Arc::strong_count(&file.open) > 1);
    }

    /// Fails if the file would not fit when it is `len` long.
    fn room(&mut self, inode: u64, len: u64) -> io::Result<()> {
        let old = self.inode(inode)?.cached.len() as u64;
        let used: u64 = self
            .names
            .values()
            .filter_map(|named| self.inodes.get(named))
            .map(|file| file.cached.len() as u64)
            .sum();
        if len > old && used.saturating_add(len - old) > self.capacity_bytes {
            self.struck.refused += 1;
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "simulated disk is full",
            ));
        }
        Ok(())
    }

    fn sync_fails(&mut self) -> bool {
        let planned = match &mut self.fail_sync_in {
            Some(0) => true,
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        };
        if planned {
            self.fail_sync_in = None;
        }
        let fails = planned || self.random.chance(self.sync_error_ppm);
        self.struck.syncs += u64::from(fails);
        fails
    }

    fn write(&mut self, inode: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut offset = offset;
        if let Some((path, to)) = &self.misdirect
            && self.names.get(path) == Some(&inode)
        {
            offset = *to;
            self.misdirect = None;
            self.struck.misdirected += 1;
        }
        self.room(inode, offset + data.len() as u64)?;
        let mut data = data.to_vec();
        if self.random.chance(self.flip_bit_ppm) {
            let at = self.random.below(data.len() as u64) as usize;
            let bit = self.random.below(8);
            if let Some(byte) = data.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        self.record(inode, Change::Write { offset, data })
    }

    fn record(&mut self, inode: u64, change: Change) -> io::Result<()> {
        let file = self.inode_mut(inode)?;
        change.apply(&mut file.cached);
        file.pending.push(change);
        Ok(())
    }

    /// Syncs a folder, unless that is to fail: then true.
    fn sync_dir(&mut self, dir: &Path) -> io::Result<bool> {
        self.change()?;
        if self.sync_fails() {
            return Ok(true);
        }
        let pending = std::mem::take(&mut self.pending_names);
        for change in pending {
            if change.dir() == Some(dir) {
                change.apply(&mut self.durable_names);
            } else {
                self.pending_names.push(change);
            }
        }
        self.forget_removed();
        Ok(false)
    }

    /// Syncs a file, unless that is to fail: then true.
    fn sync(&mut self, inode: u64) -> io::Result<bool> {
        self.change()?;
        let failed = self.sync_fails();
        let mut random = Random::new(self.random.next());
        let file = self.inode_mut(inode)?;
        let pending = std::mem::take(&mut file.pending);
        if failed {
            let durable = std::mem::take(&mut file.durable);
            file.durable = after_crash(durable, &pending, &mut random);
            return Ok(true);
        }
        pending
            .iter()
            .for_each(|change| change.apply(&mut file.durable));
        Ok(false)
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    async fn open(&self, path: &Path) -> io::Result<SimFile> {
        wait(&self.shared, DiskOp::Open, 0).await;
        let state = self.lock();
        state.alive()?;
        let inode = state.find(path)?;
        let open = Arc::clone(&state.inode(inode)?.open);
        Ok(SimFile {
            shared: Arc::clone(&self.shared),
            inode,
            _open: open,
        })
    }

    async fn create(&self, path: &Path) -> io::Result<SimFile> {
        wait(&self.shared, DiskOp::Open, 0).await;
        let mut state = self.lock();
        state.change()?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if !path.parent().is_some_and(|dir| state.dirs.contains(dir)) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such folder"));
        }
        let inode = state.next_inode;
        state.next_inode += 1;
        let file = Inode::default();
        let open = Arc::clone(&file.open);
        state.inodes.insert(inode, file);
        state.name(NameChange::Link(path.to_owned(), inode));
        Ok(SimFile {
            shared: Arc::clone(&self.shared),
            inode,
            _open: open,
        })
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        wait(&self.shared, DiskOp::Name, 0).await;
        let mut state = self.lock();
        state.change()?;
        state.find(from)?;
        state.name(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        wait(&self.shared, DiskOp::Name, 0).await;
        let mut state = self.lock();
        state.change()?;
        state.find(path)?;
        state.name(NameChange::Unlink(path.to_owned()));
        Ok(())
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        wait(&self.shared, DiskOp::Read, 0).await;
        let state = self.lock();
        state.alive()?;
        if !state.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let names = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(names
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect())
    }

    async fn list_dirs(&self, dir: &Path) -> io::Result<Vec<String>> {
        wait(&self.shared, DiskOp::Read, 0).await;
        let state = self.lock();
        state.alive()?;
        let dirs = state.dirs.iter().filter(|path| path.parent() == Some(dir));
        Ok(dirs
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect())
    }

    async fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        wait(&self.shared, DiskOp::Name, 0).await;
        let mut state = self.lock();
        state.alive()?;
        state.dirs.extend(dir.ancestors().map(Path::to_owned));
        Ok(())
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        wait(&self.shared, DiskOp::SyncDir, 0).await;
        let failed = self.lock().sync_dir(dir)?;
        told(&self.shared, failed).await
    }

    async fn pause(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        wait(&self.shared, DiskOp::Pause, us).await;
    }
}

impl SimFile {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.shared)
    }
}

impl DiskFile for SimFile {
    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        wait(&self.shared, DiskOp::Read, buf.len() as u64).await;
        let state = self.lock();
        state.alive()?;
        let bytes = state
            .inode(self.inode)?
            .cached
            .get(offset as usize..)
            .unwrap_or_default();
        let n = bytes.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), bytes.get(..n)) {
            to.copy_from_slice(from);
        }
        Ok(n)
    }

    async fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        wait(&self.shared, DiskOp::Write, data.len() as u64).await;
        let mut state = self.lock();
        state.change()?;
        state.write(self.inode, offset, data)
    }

    async fn len_bytes(&self) -> io::Result<u64> {
        let state = self.lock();
        state.alive()?;
        Ok(state.inode(self.inode)?.cached.len() as u64)
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        wait(&self.shared, DiskOp::Write, 0).await;
        let mut state = self.lock();
        state.change()?;
        state.room(self.inode, len)?;
        state.record(self.inode, Change::SetLen(len))
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        wait(&self.shared, DiskOp::Write, len).await;
        let mut state = self.lock();
        state.change()?;
        let old = state.inode(self.inode)?.cached.len() as u64;
        if len <= old {
            return Ok(());
        }
        state.room(self.inode, len)?;
        let data = vec![0_u8; (len - old) as usize];
        state.record(self.inode, Change::Write { offset: old, data })
    }

    async fn sync_data(&self) -> io::Result<()> {
        wait(&self.shared, DiskOp::Sync, 0).await;
        let failed = self.lock().sync(self.inode)?;
        told(&self.shared, failed).await
    }
}
