//! What the writer is asked to do.

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::format::Record;
use super::{Callback, Entry, LogId, WalError};

/// A change of the log, in the order in which it happened in memory.
pub(super) enum Command {
    Append {
        append: u64,
        entries: Vec<Entry>,
        _budget: Option<OwnedSemaphorePermit>,
    },
    Vote(Bytes),
    Committed(Option<Bytes>),
    /// Entries from this index on are gone; `None`: all are, and the next may have any index.
    Truncate(Option<u64>),
    Purge(LogId),
    /// Changes nothing.
    Flush,
    /// Changes nothing; a mark is to cover what there is.
    Settle,
    /// The last command.
    Close,
}

/// A command, and what is to be called when it is durable.
pub(super) struct Request {
    pub(super) command: Command,
    pub(super) done: Option<Callback>,
}

/// What is written with one write, and who waits for it.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) commands: Vec<Command>,
    pub(super) waiting: Vec<Callback>,
}

impl Batch {
    pub(super) fn encoded_bytes(&self) -> usize {
        self.commands.iter().map(Command::encoded_bytes).sum()
    }

    pub(super) fn answer(&mut self, result: &Result<(), WalError>) {
        self.commands.clear();
        for done in self.waiting.drain(..) {
            done(result.clone());
        }
    }
}

impl Command {
    pub(super) fn encoded_bytes(&self) -> usize {
        match self {
            Self::Append { entries, .. } => entries
                .iter()
                .map(|entry| Record::stride(entry.payload.len()))
                .sum(),
            Self::Vote(bytes) | Self::Committed(Some(bytes)) => Record::stride(bytes.len()),
            Self::Committed(None) | Self::Truncate(_) | Self::Purge(_) => Record::stride(0),
            Self::Flush | Self::Settle | Self::Close => 0,
        }
    }

    /// A mark must cover it before it is answered. A vote that could be lost without a trace
    /// could be given twice in a term.
    pub(super) fn needs_mark(&self) -> bool {
        matches!(self, Self::Vote(_) | Self::Settle | Self::Close)
    }

    /// May wait for the next batch that is written anyway.
    pub(super) fn is_lazy(&self) -> bool {
        matches!(self, Self::Committed(_))
    }
}
