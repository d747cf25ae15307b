//! A process with everything it starts, and the end of all of it.
//!
//! Each task's leader is the head of a process group. The group is signalled while its leader is
//! not yet reaped, so its number cannot have been given to anybody else. What left the group
//! (`setsid`, a daemon) is found by the task's mark in its environment: the path of its socket,
//! which no other task has. Linux only; elsewhere the group is all that can be found.
//!
//! Invariant: when a [`Group`] is dropped, however that comes, the group has been sent SIGKILL and
//! the search for what left it has been started.
//!
//! Absent: what removes the mark from its environment and leaves the group, and what is left when
//! the executor itself is killed by SIGKILL. The first is for a service supervisor's control group,
//! the second is swept when the executor starts again ([`sweep`]).

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// How often a sweep looks again for what was just being started.
const MAX_SWEEPS: usize = 20;
/// The pause between two looks.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);

/// A running process group.
#[derive(Debug)]
pub struct Group {
    // Dropped first, while the leader cannot have been reaped.
    reaper: Reaper,
    child: Child,
}

impl Group {
    /// Starts a command as the leader of a new group. `mark` is what every process of it has in its
    /// environment, `NAME=value`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command, mark: String) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let leader = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the process has no number"))?;
        Ok(Self {
            reaper: Reaper {
                leader,
                mark,
                killed: false,
            },
            child,
        })
    }

    /// The leader, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until the leader has ended, and leaves it unreaped where the system can tell.
    pub async fn leader_ended(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(watch) = watch(self.reaper.leader) {
            // Readable once the process has ended.
            if watch.readable().await.is_ok() {
                return;
            }
        }
        // An error means that there is nothing to wait for.
        let _ = self.child.wait().await;
    }

    /// Asks the whole group to end.
    pub fn ask_to_end(&self) {
        let _ = kill_process_group(self.reaper.leader, Signal::TERM);
        // A stopped process does not see the request otherwise.
        let _ = kill_process_group(self.reaper.leader, Signal::CONT);
    }

    /// Kills the whole group and what left it, and reaps the leader.
    ///
    /// # Errors
    /// The leader's status cannot be read.
    pub async fn end(&mut self) -> io::Result<ExitStatus> {
        self.reaper.kill_group();
        let mark = self.reaper.mark.clone();
        // The search reads files; it goes on even if nobody waits for it any more.
        let search = tokio::task::spawn_blocking(move || sweep(&mark));
        let status = self.child.wait().await;
        let _ = search.await;
        status
    }
}

/// Kills the group when it is dropped before its end.
#[derive(Debug)]
struct Reaper {
    leader: Pid,
    mark: String,
    killed: bool,
}

impl Reaper {
    fn kill_group(&mut self) {
        if !self.killed {
            self.killed = true;
            let _ = kill_process_group(self.leader, Signal::KILL);
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        if self.killed {
            return;
        }
        self.kill_group();
        let mark = std::mem::take(&mut self.mark);
        // A thread of its own: this may run while the runtime goes down.
        let search = std::thread::Builder::new().name("task-sweep".into());
        if let Err(fault) = search.spawn(move || sweep(&mark)) {
            tracing::warn!(%fault, "cannot search for what a task left behind");
        }
    }
}

#[cfg(target_os = "linux")]
#[expect(
    deprecated,
    reason = "the successor is unsafe: it asks for an open handle, which an owned one is"
)]
fn watch(process: Pid) -> Option<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
    use rustix::process::{PidfdFlags, pidfd_open};
    let handle = pidfd_open(process, PidfdFlags::NONBLOCK).ok()?;
    tokio::io::unix::AsyncFd::with_interest(handle, tokio::io::Interest::READABLE).ok()
}

/// Kills every process whose environment has `mark` (`NAME=value`, or a start of it that ends with
/// `/`), except this one. Tells how many were found. Blocks for a moment.
pub fn sweep(mark: &str) -> usize {
    let mut found = 0;
    for round in 0..MAX_SWEEPS {
        if round > 0 {
            std::thread::sleep(SWEEP_PAUSE);
        }
        // What is found may be starting more, so the search ends when a look finds nothing.
        let now = marked::kill(mark);
        if now == 0 {
            break;
        }
        found += now;
    }
    found
}

#[cfg(target_os = "linux")]
mod marked {
    use std::fs::File;
    use std::io::Read as _;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    /// The most of an environment that is read, in bytes. The system's own limit is about this.
    const MAX_ENVIRONMENT_BYTES: u64 = 4 * 1024 * 1024;

    pub(super) fn kill(mark: &str) -> usize {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return 0;
        };
        let own = std::process::id().cast_signed();
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|number| *number != own)
            .filter(|number| kill_one(*number, mark))
            .count()
    }

    fn kill_one(number: i32, mark: &str) -> bool {
        if !has_mark(number, mark) {
            return false;
        }
        let Some(process) = Pid::from_raw(number) else {
            return false;
        };
        // The handle names one process for good. If that one has the mark, it is the one meant.
        let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else {
            return false;
        };
        has_mark(number, mark) && pidfd_send_signal(&handle, Signal::KILL).is_ok()
    }

    fn has_mark(number: i32, mark: &str) -> bool {
        let Ok(file) = File::open(format!("/proc/{number}/environ")) else {
            return false;
        };
        let mut environment = Vec::new();
        if file
            .take(MAX_ENVIRONMENT_BYTES)
            .read_to_end(&mut environment)
            .is_err()
        {
            return false;
        }
        let mark = mark.as_bytes();
        environment.split(|byte| *byte == 0).any(|variable| {
            variable == mark || (mark.ends_with(b"/") && variable.starts_with(mark))
        })
    }
}

#[cfg(not(target_os = "linux"))]
mod marked {
    pub(super) fn kill(_mark: &str) -> usize {
        0
    }
}
