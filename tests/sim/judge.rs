//! Who watches a run: one replay of what was committed, and the invariants that look at it.
//!
//! The first node that applies an entry tells the judge what stands at that place of the log. The judge
//! applies it to a state of its own, which began empty and is never restored from anything. So every
//! replica, however often it crashed and from whatever snapshot it came back, can be compared with one full
//! replay.

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tenure_machine::{Job, LogPosition, Outcome, Proposal, State};
use tenure_raft::state_machine::{Applied, ApplyObserver, Replica};
use tenure_raft::transport::Lane;
use tenure_raft::wire::{PeerRequest, PeerResponse};
use tenure_storage::archive::Archive;

use crate::invariants::{self, Invariant};
use crate::network::Probed;
use crate::scope::Process;
use crate::traps::{Moment, Traps};
use crate::{clock, story, tell};

/// One entry of the log, seen for the first time, with the state before and after it.
pub struct Entry<'a> {
    /// Its place.
    pub at: LogPosition,
    /// What it carries; nothing for a new leader's blank entry or a change of the members.
    pub proposal: Option<&'a Proposal>,
    /// What came of it in the replay.
    pub outcome: Option<&'a Outcome>,
    /// The state before it.
    pub before: &'a State,
    /// The state after it.
    pub after: &'a State,
}

/// Requests about a snapshot that are longer than this carry a piece of it.
const MAX_SNAPSHOT_WORDS_BYTES: usize = 512;

/// Something that was seen.
pub enum Seen<'a> {
    /// An entry is applied for the first time anywhere.
    Committed(&'a Entry<'a>),
    /// A node applied an entry.
    Applied {
        /// Which node.
        node: Process,
        /// The place of the entry.
        at: LogPosition,
        /// What it carries.
        proposal: Option<&'a Proposal>,
        /// What came of it on that node.
        outcome: Option<&'a Outcome>,
    },
    /// A node's process began, from a snapshot up to here or from nothing.
    Began {
        /// Which node.
        node: Process,
    },
    /// A node's process is gone.
    Ended {
        /// Which node.
        node: Process,
    },
    /// A node's consensus began, with what it found on its disk.
    Started {
        /// Which node.
        node: Process,
        /// The term it begins in.
        term: u64,
        /// The last entry of its log.
        last_log: Option<u64>,
    },
    /// Time has passed.
    Passed {
        /// How much, in microseconds.
        us: u64,
        /// Whether some node that runs leads, and heard from its majority of late.
        led: bool,
    },
    /// A node's state jumped to here by a snapshot.
    Jumped {
        /// Which node.
        node: Process,
        /// The last entry in the snapshot.
        at: LogPosition,
    },
    /// A node sent another a request.
    Message {
        /// The sender.
        from: Process,
        /// The request.
        request: &'a PeerRequest,
    },
    /// A node answered a request of another.
    Answered {
        /// The node that answers.
        node: Process,
        /// The request.
        request: &'a PeerRequest,
        /// The answer.
        answer: &'a PeerResponse,
    },
    /// A node looked whether another's port is open.
    Probed(Probed),
    /// A look at a node's state.
    Sampled {
        /// Which node.
        node: Process,
        /// Its state.
        replica: &'a Replica,
        /// The replay at the same place.
        replay: &'a State,
    },
    /// A handler ran a line of its own.
    Worked {
        /// The executor's process.
        process: Process,
        /// The run.
        run: u64,
        /// The shard.
        shard: u32,
        /// The epoch it works under.
        epoch: u64,
        /// How many records the task has.
        total: u64,
    },
    /// A write reached the sink.
    Stored {
        /// The fencing scope.
        scope: &'a str,
        /// Generation and epoch of the writer.
        token: (u64, u64),
        /// The run.
        run: u64,
        /// The shard.
        shard: u32,
        /// Which record.
        record: u64,
        /// Whether the sink took it.
        accepted: bool,
    },
    /// A client was told something.
    Acknowledged(&'a Call),
    /// A sync failed in a node's process.
    SyncFailed {
        /// Which node.
        node: Process,
    },
    /// What was durable on a node's disk is damaged from now on.
    Damaged {
        /// Which node.
        node: Process,
    },
    /// All is over, and a node says that its archive has every fact.
    Archived {
        /// Which node.
        node: Process,
        /// Its archive.
        archive: &'a dyn Archive,
    },
}

/// A call that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// How many entries were committed when it was made; of a repeated one, when it was first made.
    pub committed: u64,
    /// What its client was told.
    pub ack: Ack,
}

/// What changes of a job in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Face {
    /// The revision.
    pub revision: u64,
    /// Whether it is paused.
    pub paused: bool,
    /// Its description: another one with each put.
    pub description: String,
}

impl From<&Job> for Face {
    fn from(job: &Job) -> Self {
        Self {
            revision: job.revision,
            paused: job.paused_at_ms.is_some(),
            description: job.spec.description.to_string(),
        }
    }
}

impl From<&tenure_api::jobs::Job> for Face {
    fn from(job: &tenure_api::jobs::Job) -> Self {
        Self {
            revision: job.revision.get(),
            paused: job.spec.paused,
            description: job.spec.description.clone(),
        }
    }
}

/// What a client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ack {
    /// A job is as the client has put it.
    Job {
        /// The job.
        name: String,
        /// Its revision.
        revision: u64,
        /// Its description: another one with each put.
        description: String,
        /// The client made it so: it was not so already.
        changed: bool,
    },
    /// A job is paused, or is not.
    Paused {
        /// The job.
        name: String,
        /// Which of both.
        paused: bool,
    },
    /// A job was read.
    Read {
        /// The job.
        name: String,
        /// As it was shown.
        face: Face,
    },
    /// A job was looked for, and there was none.
    NoJob {
        /// The job.
        name: String,
    },
    /// A job was deleted.
    Deleted {
        /// The job.
        name: String,
    },
    /// A run is to be cancelled, or was over.
    Cancelled {
        /// The run.
        run: u64,
    },
    /// A run was looked for, of which somebody had been told before, and there was none.
    Missing {
        /// The run.
        run: u64,
    },
    /// A run was read.
    Run {
        /// The run.
        run: u64,
        /// How it ended, if it was shown as over.
        ended: Option<String>,
    },
    /// A page of the ledger of a job.
    Ledger {
        /// The job.
        job: String,
        /// First and last instant and the run that was made, as they were listed.
        fires: Vec<(u64, u64, Option<u64>)>,
        /// Whether there are no more.
        whole: bool,
        /// Whether it was asked for as it is now, and not as the node has it.
        current: bool,
    },
    /// A page of runs.
    Listed {
        /// Of this job, or of all.
        job: Option<String>,
        /// Their numbers, as they were listed.
        runs: Vec<u64>,
        /// Whether there are no more.
        whole: bool,
        /// Whether it was asked for as it is now, and not as the node has it.
        current: bool,
    },
    /// A trigger made a run, or had made it.
    Trigger {
        /// The idempotency key.
        key: String,
        /// The run.
        run: u64,
    },
    /// Nothing has happened under an idempotency key, and the client does not repeat it.
    Nothing {
        /// The idempotency key.
        key: String,
    },
    /// An executor has this session.
    Registered(u64),
    /// The lease of this session is renewed.
    Renewed(u64),
    /// A task may begin: run, shard and epoch.
    Started((u64, u64, u64)),
    /// The end of a task is known: run, shard and epoch.
    Ended((u64, u64, u64)),
    /// A checkpoint is committed.
    Checkpoint {
        /// The run.
        run: u64,
        /// The shard.
        shard: u32,
        /// The epoch of the handler.
        epoch: u64,
        /// The offset.
        offset: u64,
    },
}

/// What was found to be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The sentence that does not hold.
    pub sentence: String,
    /// What was seen.
    pub what: String,
    /// When, in virtual microseconds.
    pub at_us: u64,
    /// What happened before.
    pub story: Vec<String>,
}

/// The most violations a run collects.
const ENOUGH: usize = 5;
/// Entries whose states the replay keeps, to compare replicas that are behind.
const KEEP_STATES: usize = 20_000;

struct Bench {
    invariants: Vec<Box<dyn Invariant>>,
    /// The replay.
    replay: State,
    /// The place and the proposal of each entry, from index 0; the state after it for the latest ones.
    log: Vec<(LogPosition, Option<State>)>,
    violations: Vec<Violation>,
}

/// The judge of a run.
pub struct Judge {
    /// What waits for a moment.
    pub traps: Traps,
    bench: Mutex<Bench>,
}

/// What invariants use to say what they found.
#[derive(Default)]
pub struct Findings(Vec<String>);

impl Findings {
    /// Says that the invariant does not hold.
    pub fn add(&mut self, what: String) {
        self.0.push(what);
    }

    /// What was said.
    pub fn said(&self) -> &[String] {
        &self.0
    }
}

impl Bench {
    fn show(&mut self, seen: &Seen<'_>) {
        for invariant in &mut self.invariants {
            let mut findings = Findings::default();
            invariant.see(seen, &mut findings);
            for what in findings.0 {
                let violation = Violation {
                    sentence: invariant.sentence().to_owned(),
                    what,
                    at_us: clock::true_us(),
                    story: Vec::new(),
                };
                if self.violations.len() < ENOUGH {
                    self.violations.push(with_story(violation));
                }
            }
        }
    }

    /// Takes the next entry into the replay.
    fn commit(&mut self, at: LogPosition, proposal: Option<&Proposal>) {
        let before = self.replay.clone();
        let outcome = proposal.map(|proposal| self.replay.apply(at, proposal));
        let after = self.replay.clone();
        let entry = Entry {
            at,
            proposal,
            outcome: outcome.as_ref(),
            before: &before,
            after: &after,
        };
        narrate(&entry);
        self.show(&Seen::Committed(&entry));
        self.log.push((at, Some(after)));
        if let Some(old) = self.log.len().checked_sub(KEEP_STATES + 1)
            && let Some((_, state)) = self.log.get_mut(old)
        {
            *state = None;
        }
    }
}

fn with_story(mut violation: Violation) -> Violation {
    tell!("VIOLATION: {}: {}", violation.sentence, violation.what);
    violation.story = story::last(40, 60);
    violation
}

/// What is worth telling of an entry.
fn narrate(entry: &Entry<'_>) {
    let Some(proposal) = entry.proposal else {
        return;
    };
    if matches!(
        proposal.command,
        tenure_machine::Command::Heartbeat(_) | tenure_machine::Command::AppendOutput { .. }
    ) {
        return;
    }
    let mut words = format!("{:?}", proposal.command);
    if words.len() > 160 {
        let cut = (0..=160).rev().find(|at| words.is_char_boundary(*at));
        words.truncate(cut.unwrap_or(0));
    }
    let refused = entry.outcome.and_then(|o| o.reply.as_ref().err());
    let refused = refused.map_or(String::new(), |r| format!(" refused: {r}"));
    tell!("[{}.{}] {words}{refused}", entry.at.term, entry.at.index);
}

impl Judge {
    /// The judge of a new run.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            traps: Traps::default(),
            bench: Mutex::new(Bench {
                invariants: invariants::all(),
                replay: State::default(),
                log: Vec::new(),
                violations: Vec::new(),
            }),
        })
    }

    fn with<R>(&self, look: impl FnOnce(&mut Bench) -> R) -> R {
        look(&mut self.bench.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Shows the invariants what was seen.
    pub fn show(&self, seen: &Seen<'_>) {
        self.with(|bench| bench.show(seen));
    }

    /// Says that something that is no invariant of its own does not hold.
    pub fn complain(&self, sentence: &str, what: String) {
        self.with(|bench| {
            if bench.violations.len() < ENOUGH {
                bench.violations.push(with_story(Violation {
                    sentence: sentence.to_owned(),
                    what,
                    at_us: clock::true_us(),
                    story: Vec::new(),
                }));
            }
        });
    }

    /// What was found to be wrong so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.with(|bench| bench.violations.clone())
    }

    /// Whether anything was found.
    pub fn found(&self) -> bool {
        self.with(|bench| !bench.violations.is_empty())
    }

    /// What the invariants have counted.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.with(|bench| {
            let invariants = bench.invariants.iter();
            invariants.flat_map(|each| each.counts()).collect()
        })
    }

    /// How many entries were committed.
    pub fn committed(&self) -> u64 {
        self.with(|bench| bench.log.len() as u64)
    }

    /// The replay of all that was committed.
    pub fn replay(&self) -> State {
        self.with(|bench| bench.replay.clone())
    }

    /// Compares a replica with the replay at the same place.
    pub fn sample(&self, node: Process, replica: &Replica) {
        let Some(at) = replica.applied else {
            return;
        };
        self.with(|bench| {
            let replay = match bench.log.get(at.index as usize) {
                Some((_, Some(state))) => state.clone(),
                _ => return,
            };
            bench.show(&Seen::Sampled {
                node,
                replica,
                replay: &replay,
            });
        });
    }

    /// A tap on the network.
    pub fn message(&self, from: Process, to: Process, lane: Lane, bytes: &[u8]) {
        let request = (lane != Lane::Forward).then(|| PeerRequest::from_bytes(bytes));
        let request = request.and_then(Result::ok);
        if let Some(request) = &request {
            self.show(&Seen::Message { from, request });
        }
        self.traps.offer(Moment::Sent {
            from,
            to,
            lane,
            request: request.as_ref(),
        });
    }

    /// A tap on what nodes answer.
    pub fn answer(&self, node: Process, lane: Lane, request: &[u8], answer: &[u8]) {
        // Of a snapshot, its pieces say nothing.
        let piece = lane == Lane::Snapshot && request.len() > MAX_SNAPSHOT_WORDS_BYTES;
        if lane == Lane::Forward || piece {
            return;
        }
        if let (Ok(request), Ok(answer)) = (
            PeerRequest::from_bytes(request),
            PeerResponse::from_bytes(answer),
        ) {
            self.show(&Seen::Answered {
                node,
                request: &request,
                answer: &answer,
            });
        }
    }

    /// Stands before a node's own observer and sees what it sees.
    pub fn observe(
        self: &Arc<Self>,
        node: Process,
        inner: Arc<dyn ApplyObserver>,
    ) -> Arc<dyn ApplyObserver> {
        self.show(&Seen::Began { node });
        Arc::new(Watching {
            node,
            judge: self.clone(),
            inner,
        })
    }
}

struct Watching {
    node: Process,
    judge: Arc<Judge>,
    inner: Arc<dyn ApplyObserver>,
}

impl ApplyObserver for Watching {
    fn restored(&self, at: LogPosition) {
        self.judge.show(&Seen::Jumped {
            node: self.node,
            at,
        });
        self.inner.restored(at);
    }

    fn checked(&self, at: LogPosition, entry: Option<(&Proposal, &Outcome)>) {
        let proposal = entry.map(|(proposal, _)| proposal);
        let first = self.judge.with(|bench| {
            let first = bench.log.len() as u64 == at.index;
            if first {
                bench.commit(at, proposal);
            }
            bench.show(&Seen::Applied {
                node: self.node,
                at,
                proposal,
                outcome: entry.map(|(_, outcome)| outcome),
            });
            first
        });
        if let Some((proposal, outcome)) = entry.filter(|_| first) {
            self.judge.traps.offer(Moment::Committed {
                node: self.node,
                proposal,
                outcome,
            });
        }
        self.inner.checked(at, entry);
    }

    fn applied(&self, run: Vec<Applied>) -> BoxFuture<'_, ()> {
        self.inner.applied(run)
    }

    fn replaced(&self, at: LogPosition, state: State) -> BoxFuture<'_, ()> {
        self.judge.show(&Seen::Jumped {
            node: self.node,
            at,
        });
        self.inner.replaced(at, state)
    }
}
