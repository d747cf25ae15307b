//! Opening: reads every segment once, tells a torn tail from corruption, and makes durable what
//! it found. See the module above for the reasoning.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{Disk, DiskFile, SECTOR_BYTES};

use super::control::{self, Control};
use super::format::{
    BATCH_HEADER_BYTES, BatchHeader, DATA_START, Kind, MARKS_AT, Record, SegmentHeader, seed,
};
use super::log::{Log, Segment};
use super::mark::{Mark, Marks};
use super::opened::{Opened, Window};
use super::segment::{create_zeroed, install, live_name, live_sequence, spare_number};
use super::writer::{Current, Meta};
use super::{Corruption, WalError, WalOptions};

/// What opening found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WalReport {
    /// There was no log: the folder was empty or did not exist. A node that is known to have had
    /// one must not go on.
    pub created: bool,
    /// A write that was never acknowledged was cut off.
    pub torn_tail: Option<TornTail>,
    /// Entries in the log.
    pub entries: u64,
    /// Segment files that were read.
    pub segments: u64,
}

/// A write that a crash interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The newest segment.
    pub file: PathBuf,
    /// Where it was cut, in bytes.
    pub offset: u64,
}

/// All that the tasks start from.
pub(super) struct Recovered<F> {
    pub(super) log: Log,
    pub(super) current: Current<F>,
    pub(super) control: Control<F>,
    pub(super) batch: u64,
    pub(super) meta: Meta,
    pub(super) highest: BTreeMap<u32, Option<u64>>,
    pub(super) spares: Vec<u64>,
    pub(super) report: WalReport,
}

/// Reads the log in `dir`, or creates it.
pub(super) async fn recover<D: Disk>(
    disk: &D,
    dir: &Path,
    options: &WalOptions,
) -> Result<Recovered<D::File>, WalError> {
    disk.create_dir_all(dir)
        .await
        .map_err(|e| WalError::io("create", dir, e))?;
    let names = disk
        .list(dir)
        .await
        .map_err(|e| WalError::io("list", dir, e))?;
    let mut sequences: Vec<u32> = names
        .iter()
        .filter_map(|name| live_sequence(name))
        .collect();
    sequences.sort_unstable();
    let spares: Vec<u64> = names.iter().filter_map(|name| spare_number(name)).collect();
    let control = Control::open(disk, dir).await?;
    let replay = Replay {
        log: Log::new(options.cache_bytes),
        batch: 0,
        highest: BTreeMap::new(),
        report: WalReport::default(),
    };
    match &control {
        Some(control) => check_newest(dir, control.newest(), &sequences)?,
        // The control file is older than the first batch and so than the first spare.
        None if !sequences.is_empty() => {}
        None if !spares.is_empty() => return Err(no_control(dir)),
        None if !options.create => return Err(WalError::Missing(dir.to_owned())),
        None => return replay.create(disk, dir, options).await,
    }
    let found = Found {
        control,
        sequences,
        spares,
        may_create: options.create,
    };
    replay.open(disk, dir, found).await
}

/// The files of a log that exists.
struct Found<F> {
    control: Option<Control<F>>,
    sequences: Vec<u32>,
    spares: Vec<u64>,
    /// A first start that was interrupted may be finished.
    may_create: bool,
}

/// Fails if a segment is gone that the control file knows.
fn check_newest(dir: &Path, recorded: u32, sequences: &[u32]) -> Result<(), WalError> {
    let found = sequences.last().copied().unwrap_or_default();
    let (file, what) = if found < recorded {
        let what = "the newest segment file is missing, and perhaps some before it";
        (dir.join(live_name(recorded)), what)
    } else if found - recorded > 1 {
        let what = "there are segments newer than this file can have missed";
        (control::path(dir), what)
    } else {
        return Ok(());
    };
    Err(WalError::Corrupt(Corruption {
        file,
        offset: 0,
        index: None,
        what,
    }))
}

fn no_control(dir: &Path) -> WalError {
    WalError::Corrupt(Corruption {
        file: control::path(dir),
        offset: 0,
        index: None,
        what: "the file that notes the newest segment is missing",
    })
}

/// How far the whole batches of a segment reach.
struct Scan {
    /// Offset behind the last whole batch.
    end: u64,
    /// Offset of the last whole batch.
    last: Option<u64>,
    /// Behind it begins a batch that is not whole.
    torn: bool,
}

struct Replay {
    log: Log,
    batch: u64,
    highest: BTreeMap<u32, Option<u64>>,
    report: WalReport,
}

impl Replay {
    async fn create<D: Disk>(
        mut self,
        disk: &D,
        dir: &Path,
        options: &WalOptions,
    ) -> Result<Recovered<D::File>, WalError> {
        let sequence = 1;
        // Under a name that a crash may leave behind without harm, until all of it is durable.
        let unfinished = dir.join("new-segment");
        let path = dir.join(live_name(sequence));
        match disk.remove(&unfinished).await {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(WalError::io("remove", &unfinished, e));
            }
            _ => {}
        }
        let file = create_zeroed(disk, &unfinished, options.segment_bytes).await?;
        let header = SegmentHeader {
            sequence,
            salt: options.salt,
            segment_bytes: options.segment_bytes,
            previous_end: 0,
            last_batch: 0,
            next_index: None,
        };
        file.write_at(0, &header.opening())
            .await
            .map_err(|e| WalError::io("write", &unfinished, e))?;
        install(disk, &file, &unfinished, &path).await?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            disk.sync_dir(parent)
                .await
                .map_err(|e| WalError::io("sync", parent, e))?;
        }
        let control = Control::create(disk, dir, header.first_mark()).await?;
        let seed = seed(options.salt, sequence);
        let opened = Opened {
            header,
            path,
            file,
            seed,
        };
        self.report.created = true;
        self.report.segments = 1;
        self.add_segment(&opened);
        let marks = Marks::new(MARKS_AT, seed);
        Ok(self.finish(opened, DATA_START, marks, control, Vec::new()))
    }

    async fn open<D: Disk>(
        mut self,
        disk: &D,
        dir: &Path,
        found: Found<D::File>,
    ) -> Result<Recovered<D::File>, WalError> {
        let (left_over, run) = newest_run(&found.sequences);
        let mut current: Option<Opened<D::File>> = None;
        for sequence in run {
            let next = Opened::open(disk, dir, *sequence, self.log.next_index()).await?;
            match &current {
                Some(previous) => self.replay_sealed(previous, &next).await?,
                None => {
                    self.batch = next.header.last_batch;
                    self.log.start_at(next.header.next_index);
                }
            }
            self.add_segment(&next);
            current = Some(next);
        }
        let Some(newest) = current else {
            return Err(WalError::Options("there is no segment"));
        };
        let (mut marks, mark) = self.find_mark(&newest).await?;
        let scan = self.replay_newest(&newest, &mark).await?;
        self.check_start(run.first().copied().unwrap_or(1), dir)?;
        let unused = newest.header.sequence == 1 && scan.last.is_none() && !scan.torn;
        if found.control.is_none() && !(unused && found.may_create) {
            return Err(no_control(dir));
        }
        if scan.torn {
            self.report.torn_tail = Some(TornTail {
                file: newest.path.clone(),
                offset: scan.end,
            });
        }
        rewrite_last(&newest, &scan).await?;
        let end = Mark {
            end: scan.end,
            batch: self.batch,
            ..mark
        };
        marks
            .confirm(&newest.file, &mark, &end)
            .await
            .map_err(|e| WalError::io("write and sync", &newest.path, e))?;
        // The name of the newest segment, before the control file relies on it.
        disk.sync_dir(dir)
            .await
            .map_err(|e| WalError::io("sync", dir, e))?;
        let first_mark = newest.header.first_mark();
        let control = match found.control {
            Some(mut control) => {
                control.confirm(first_mark).await?;
                control
            }
            None => Control::create(disk, dir, first_mark).await?,
        };
        remove_purged(disk, dir, left_over).await?;
        self.report.segments = run.len() as u64;
        Ok(self.finish(newest, scan.end, marks, control, found.spares))
    }

    fn add_segment<F>(&mut self, opened: &Opened<F>) {
        let sequence = opened.header.sequence;
        let segment = Segment {
            sequence,
            path: opened.path.clone(),
            seed: opened.seed,
        };
        self.log.segments.insert(sequence, Arc::new(segment));
        self.highest.insert(sequence, None);
    }

    /// Replays a segment whose end the next one notes: any byte that is wrong is corruption.
    async fn replay_sealed<F: DiskFile>(
        &mut self,
        segment: &Opened<F>,
        next: &Opened<F>,
    ) -> Result<(), WalError> {
        let mut window = Window::new(segment);
        let sealed = next.header.previous_end;
        let scan = self.replay_batches(segment, &mut window, sealed).await?;
        if scan.end != sealed || self.batch != next.header.last_batch {
            return Err(self.corrupt(
                &segment.path,
                scan.end,
                "a batch that was durable is damaged",
            ));
        }
        Ok(())
    }

    /// Reads up to where the newest segment says that it was durable.
    async fn find_mark<F: DiskFile>(&self, segment: &Opened<F>) -> Result<(Marks, Mark), WalError> {
        Marks::find(&segment.file, MARKS_AT, segment.seed)
            .await
            .map_err(|e| WalError::io("read", &segment.path, e))?
            .ok_or_else(|| {
                let what = "both marks of how far the segment is durable are damaged";
                self.corrupt(&segment.path, MARKS_AT, what)
            })
    }

    /// Replays the newest segment and decides what a bad batch at its end means.
    async fn replay_newest<F: DiskFile>(
        &mut self,
        segment: &Opened<F>,
        mark: &Mark,
    ) -> Result<Scan, WalError> {
        let mut window = Window::new(segment);
        let scan = self.replay_batches(segment, &mut window, u64::MAX).await?;
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::TruncateAtFirstBadRecord) {
            return Ok(scan);
        }
        if scan.end < mark.end || self.batch < mark.batch {
            let what = "a batch is damaged or missing that was durable";
            return Err(self.corrupt(&segment.path, scan.end, what));
        }
        let mut offset = scan.end;
        while offset < segment.header.segment_bytes {
            let sector = window.get(offset, SECTOR_BYTES).await?;
            if let Some(later) = BatchHeader::decode(sector, segment.seed)
                && later.durable_end > scan.end
            {
                let what = "a batch is damaged that later ones say was durable";
                return Err(self.corrupt(&segment.path, scan.end, what));
            }
            offset += SECTOR_BYTES as u64;
        }
        Ok(scan)
    }

    /// Replays batches up to `limit`, or to the first that is not whole or a marker.
    async fn replay_batches<F: DiskFile>(
        &mut self,
        segment: &Opened<F>,
        window: &mut Window<'_, F>,
        limit: u64,
    ) -> Result<Scan, WalError> {
        let mut scan = Scan {
            end: DATA_START,
            last: None,
            torn: false,
        };
        while scan.end < limit.min(segment.header.segment_bytes) {
            let bytes = window.get(scan.end, BATCH_HEADER_BYTES).await?;
            let Some(header) = BatchHeader::decode(bytes, segment.seed) else {
                break;
            };
            if header.body_bytes == 0 || header.batch != self.batch + 1 {
                break;
            }
            let body_at = scan.end + BATCH_HEADER_BYTES as u64;
            let body = window.get(body_at, header.body_bytes as usize).await?;
            let sound = crc32c::crc32c_append(segment.seed, body) == header.body_crc;
            #[cfg(feature = "planted-bugs")]
            let sound = sound || tenure_planted::is(tenure_planted::Bug::ChecksumUnchecked);
            if body.len() < header.body_bytes as usize || !sound {
                scan.torn = true;
                break;
            }
            if !self.replay_records(segment.header.sequence, body_at, body, header.records) {
                let what = "the records of a whole batch do not follow the log";
                return Err(self.corrupt(&segment.path, scan.end, what));
            }
            self.batch = header.batch;
            scan.last = Some(scan.end);
            scan.end += header.stride();
        }
        Ok(scan)
    }

    /// Applies the records of one batch; false if they make no sense.
    fn replay_records(&mut self, segment: u32, body_at: u64, body: &[u8], records: u32) -> bool {
        let mut at = 0;
        for _ in 0..records {
            let Some(record) = body.get(at..).and_then(Record::decode) else {
                return false;
            };
            let offset = body_at + at as u64;
            at += Record::stride(record.payload.len());
            if !self.replay_record(segment, offset as u32, &record) {
                return false;
            }
        }
        at == body.len()
    }

    fn replay_record(&mut self, segment: u32, offset: u32, record: &Record<'_>) -> bool {
        match record.kind {
            Kind::Entry => {
                let highest = self.highest.entry(segment).or_default();
                *highest = (*highest).max(Some(record.id.index));
                return self.log.replay(record.id, record.payload, segment, offset);
            }
            Kind::Vote => self.log.vote = Some(Bytes::copy_from_slice(record.payload)),
            Kind::Committed => self.log.committed = Some(Bytes::copy_from_slice(record.payload)),
            Kind::CommittedCleared => self.log.committed = None,
            Kind::Truncate => self.log.truncate_from(record.id.index),
            Kind::TruncateAll => self.log.clear(None),
            Kind::Purge => {
                self.log.purge(record.id);
            }
        }
        true
    }

    /// Checks that no segment is missing at the start of the log.
    fn check_start(&self, first_segment: u32, dir: &Path) -> Result<(), WalError> {
        let first = self.log.first_index().or(self.log.next_index());
        let complete = match self.log.purged {
            Some(purged) => first.is_none_or(|index| index <= purged.index + 1),
            None => false,
        };
        if first_segment == 1 || complete {
            return Ok(());
        }
        Err(WalError::Corrupt(Corruption {
            file: dir.join(live_name(first_segment - 1)),
            offset: 0,
            index: Some(self.log.purged.map_or(0, |purged| purged.index + 1)),
            what: "a segment file is missing that holds entries which were not purged",
        }))
    }

    fn corrupt(&self, file: &Path, offset: u64, what: &'static str) -> WalError {
        let index = self.log.next_index();
        WalError::Corrupt(Corruption {
            file: file.to_owned(),
            offset,
            index,
            what,
        })
    }

    fn finish<F>(
        mut self,
        opened: Opened<F>,
        end: u64,
        marks: Marks,
        control: Control<F>,
        spares: Vec<u64>,
    ) -> Recovered<F> {
        self.report.entries = self.log.len();
        let meta = Meta {
            vote: self.log.vote.clone(),
            committed: self.log.committed.clone(),
            purged: self.log.purged,
            next_index: self.log.next_index(),
        };
        let current = Current {
            sequence: opened.header.sequence,
            path: opened.path,
            file: opened.file,
            bytes: opened.header.segment_bytes,
            end,
            seed: opened.seed,
            marks,
            unmarked: 0,
        };
        Recovered {
            log: self.log,
            current,
            control,
            batch: self.batch,
            meta,
            highest: self.highest,
            spares,
            report: self.report,
        }
    }
}

/// Splits off the numbers before the last gap.
fn newest_run(sequences: &[u32]) -> (&[u32], &[u32]) {
    let gap = sequences.windows(2).rposition(|pair| match pair {
        [a, b] => a + 1 != *b,
        _ => false,
    });
    sequences.split_at(gap.map_or(0, |at| at + 1))
}

/// Writes the last batch again, to be synced after. The process before may have died before its
/// sync, or because the sync failed: then the cache shows bytes that the medium does not have,
/// and another sync alone would not write them.
async fn rewrite_last<F: DiskFile>(segment: &Opened<F>, scan: &Scan) -> Result<(), WalError> {
    let Some(from) = scan.last else {
        return Ok(());
    };
    let path = &segment.path;
    let mut bytes = vec![0_u8; (scan.end - from) as usize];
    let file = &segment.file;
    file.read_at(from, &mut bytes)
        .await
        .map_err(|e| WalError::io("read", path, e))?;
    file.write_at(from, &bytes)
        .await
        .map_err(|e| WalError::io("write", path, e))
}

/// Removes segments before a gap. Only once it is certain that the newer ones are whole, hold
/// all that was not purged, and are durable.
async fn remove_purged<D: Disk>(disk: &D, dir: &Path, left_over: &[u32]) -> Result<(), WalError> {
    for sequence in left_over {
        let path = dir.join(live_name(*sequence));
        disk.remove(&path)
            .await
            .map_err(|e| WalError::io("remove", &path, e))?;
    }
    if left_over.is_empty() {
        return Ok(());
    }
    disk.sync_dir(dir)
        .await
        .map_err(|e| WalError::io("sync", dir, e))
}
