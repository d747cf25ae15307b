//! Simulated processes: which task belongs to which, and their death and suspension.
//!
//! Every task is spawned in the scope of a process and inherits it to what it spawns. A process that is
//! killed is never polled again, as after SIGKILL; one that is paused is not polled until it goes on, as
//! between SIGSTOP and SIGCONT, while clocks and the network go on without it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::task::{AbortHandle, JoinHandle};

use crate::clock;

/// The number of a simulated process. 0 is the simulation itself.
pub type Process = usize;

/// The simulation itself: network, faults, checks.
pub const WORLD: Process = 0;

/// The loops that a node runs beside consensus can stop while the rest of it goes on.
pub fn loops_of(node: Process) -> Process {
    node + 100
}

/// How many processes a run has at most.
pub const PROCESSES: usize = 128;
const SWEEP_AT: usize = 256;

#[derive(Default)]
struct Tasks {
    handles: Vec<AbortHandle>,
    /// Counts the deaths: a task of an earlier life is never polled again.
    life: u64,
    /// Those who wait for the pause to end, in the order in which they were woken.
    paused: Option<Vec<Waker>>,
}

thread_local! {
    /// Polls since the last look at the clock, and what it said.
    static POLLS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static CURRENT: Cell<Process> = const { Cell::new(WORLD) };
    static TASKS: RefCell<Vec<Tasks>> = const { RefCell::new(Vec::new()) };
}

fn with<R>(process: Process, look: impl FnOnce(&mut Tasks) -> R) -> R {
    TASKS.with_borrow_mut(|all| look(&mut all[process]))
}

/// Tasks that are polled without end while no time passes would hold a run up for ever.
///
/// # Panics
/// They do.
fn notice_a_spin() {
    const MANY: u64 = 200_000;
    let (polls, since_us) = POLLS.get();
    if polls < MANY {
        return POLLS.set((polls + 1, since_us));
    }
    let now_us = clock::true_us();
    POLLS.set((0, now_us));
    assert!(now_us != since_us, "tasks spin, and no time passes");
}

/// Begins a run: no process has any task.
pub fn reset() {
    POLLS.set((0, 0));
    CURRENT.set(WORLD);
    TASKS.with_borrow_mut(|all| *all = (0..PROCESSES).map(|_| Tasks::default()).collect());
}

/// The process whose code runs now.
pub fn current() -> Process {
    CURRENT.get()
}

/// A future that runs as a part of a process.
pub struct Scoped<F> {
    process: Process,
    life: u64,
    inner: Pin<Box<F>>,
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let (process, life) = (self.process, self.life);
        let runs = with(process, |tasks| {
            if tasks.life != life {
                return false;
            }
            match &mut tasks.paused {
                Some(waiting) => {
                    waiting.push(cx.waker().clone());
                    false
                }
                None => true,
            }
        });
        if !runs {
            return Poll::Pending;
        }
        notice_a_spin();
        let before = CURRENT.replace(process);
        let polled = self.inner.as_mut().poll(cx);
        CURRENT.set(before);
        polled
    }
}

/// Makes a future run as a part of a process, without a task of its own.
pub fn within<F: Future>(process: Process, future: F) -> Scoped<F> {
    Scoped {
        process,
        life: with(process, |tasks| tasks.life),
        inner: Box::pin(future),
    }
}

/// Starts a task of a process.
pub fn spawn_in<F>(process: Process, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[allow(
        clippy::disallowed_methods,
        reason = "this is where tasks get their process"
    )]
    let task = tokio::spawn(within(process, future));
    with(process, |tasks| {
        if tasks.handles.len() >= SWEEP_AT {
            tasks.handles.retain(|task| !task.is_finished());
        }
        tasks.handles.push(task.abort_handle());
    });
    task
}

/// Starts a task of the process that runs now.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_in(current(), future)
}

/// Ends a process at once.
pub fn kill(process: Process) {
    let (handles, waiting) = with(process, |tasks| {
        tasks.life += 1;
        (std::mem::take(&mut tasks.handles), tasks.paused.take())
    });
    for task in handles {
        task.abort();
    }
    for waker in waiting.into_iter().flatten() {
        waker.wake();
    }
}

/// Suspends a process.
pub fn pause(process: Process) {
    with(process, |tasks| {
        tasks.paused.get_or_insert_default();
    });
}

/// Lets a suspended process go on.
pub fn resume(process: Process) {
    let waiting = with(process, |tasks| tasks.paused.take());
    for waker in waiting.into_iter().flatten() {
        waker.wake();
    }
}

/// Whether a process is suspended.
pub fn is_paused(process: Process) -> bool {
    with(process, |tasks| tasks.paused.is_some())
}
