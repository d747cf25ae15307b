//! The runtime that consensus runs on in a simulation: tokio's, on one thread with virtual time, with
//! seeded randomness, with a watch that wakes in order, and with tasks that belong to processes.

use std::future::Future;
use std::time::Duration;

use openraft_rt::{AsyncRuntime, OptionalSend, OptionalSync, watch as rt};
use openraft_rt_tokio::{TokioInstant, TokioMpsc, TokioMutex, TokioOneshot, TokioRuntime};
use tenure::watch;

use crate::chance::Generator;
use crate::scope;

/// The simulated runtime.
#[derive(Debug)]
pub struct SimRt(TokioRuntime);

impl AsyncRuntime for SimRt {
    type JoinError = tokio::task::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = tokio::task::JoinHandle<T>;
    type Sleep = tokio::time::Sleep;
    type Instant = TokioInstant;
    type TimeoutError = tokio::time::error::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = tokio::time::Timeout<T>;
    type ThreadLocalRng = Generator;
    type Mpsc = TokioMpsc;
    type Watch = SimWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        scope::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        error.is_panic()
    }

    fn thread_rng() -> Generator {
        Generator::fork()
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }

    /// In place: a thread would make the order depend on the machine.
    async fn spawn_blocking<F, T>(work: F) -> Result<T, std::io::Error>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Ok(work())
    }
}

/// [`tenure::watch`] as the runtime's watch.
#[derive(Debug)]
pub struct SimWatch;

/// Its sender.
pub struct SimSender<T>(watch::Sender<T>);

/// Its receiver.
pub struct SimReceiver<T>(watch::Receiver<T>);

impl<T> Clone for SimSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Clone for SimReceiver<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl rt::Watch for SimWatch {
    type Sender<T: OptionalSend + OptionalSync> = SimSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = SimReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(value: T) -> (SimSender<T>, SimReceiver<T>) {
        let (sender, receiver) = watch::channel(value);
        (SimSender(sender), SimReceiver(receiver))
    }
}

impl<T: OptionalSend + OptionalSync> rt::WatchSender<SimWatch, T> for SimSender<T> {
    fn send(&self, value: T) -> Result<(), rt::SendError<T>> {
        if self.0.is_closed() {
            return Err(rt::SendError(value));
        }
        drop(self.0.send_replace(value));
        Ok(())
    }

    fn send_if_modified<F>(&self, change: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        self.0.send_if_modified(change)
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.0.borrow()
    }

    fn subscribe(&self) -> SimReceiver<T> {
        SimReceiver(self.0.subscribe())
    }
}

impl<T: OptionalSend + OptionalSync> rt::WatchReceiver<SimWatch, T> for SimReceiver<T> {
    async fn changed(&mut self) -> Result<(), rt::RecvError> {
        self.0.changed().await.map_err(|_| rt::RecvError(()))
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.0.borrow()
    }

    fn borrow_and_update(&mut self) -> watch::Ref<'_, T> {
        self.0.borrow_and_update()
    }
}
