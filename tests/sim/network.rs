//! The simulated network: between nodes, and from clients and executors to nodes.
//!
//! - A message takes a random time. On one lane between two nodes messages arrive in the order in which they
//!   were sent, as over TCP; what is under way when a connection breaks may still arrive, even after what is
//!   sent over the next connection.
//! - A direction can be cut by itself. What is sent into a cut is lost, or arrives when the cut has healed.
//! - A process that is down refuses; a machine that is off is silent. A port of a living process can be made
//!   to refuse new connections too.
//! - The end of a connection is told to the side that accepted it, after all that came over it.
//! - What was sent is under way by itself: it may arrive after its sender has given up, was suspended or died.
//! - What arrives runs in the scope of its target: a target that is paused serves later, one that is killed
//!   never answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use futures::future::BoxFuture;
use tenure_raft::transport::{CallError, Lane, PeerService, PeerTransport};
use tenure_sdk::Request;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

mod http;

pub use self::http::{HttpLink, Witness};

use crate::chance;
use crate::scope::{self, Process, WORLD};
use crate::trace;

/// How long what was sent into a cut is sent again.
const RETRANSMIT_FOR: Duration = Duration::from_secs(20);

/// What the network is like now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weather {
    /// Shortest and longest time of a message, in microseconds.
    pub delay_us: (u64, u64),
    /// How many messages in a thousand take much longer: one was lost and sent again.
    pub resent_per_mille: u64,
    /// How many messages in a thousand meet the end of their connection.
    pub broken_per_mille: u64,
    /// How many requests of clients and executors in a thousand are sent again, much later, by something
    /// between them and the node.
    pub copied_per_mille: u64,
}

impl Default for Weather {
    fn default() -> Self {
        Self {
            delay_us: (200, 1_800),
            resent_per_mille: 0,
            broken_per_mille: 0,
            copied_per_mille: 0,
        }
    }
}

/// Sees every request between nodes: sender, target, lane, bytes.
pub type Tap = Box<dyn FnMut(Process, Process, Lane, &Bytes) + Send>;

/// Sees every answer between nodes: who answers, lane, request, answer.
pub type AnswerTap = Arc<dyn Fn(Process, Lane, &Bytes, &Bytes) + Send + Sync>;
/// What a probe met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probed {
    /// Who probed.
    pub from: Process,
    /// Whose port.
    pub to: Process,
    /// Whether it refused.
    pub refused: bool,
    /// Whether a process runs behind it.
    pub lives: bool,
}

/// Sees every probe.
pub type ProbeTap = Box<dyn FnMut(Probed) + Send>;

/// What the network has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests between nodes.
    pub peer: u64,
    /// Requests from clients and executors.
    pub http: u64,
    /// Messages that were lost or came with the end of their connection.
    pub lost: u64,
    /// Messages that were sent again by the lower layers and came late.
    pub resent: u64,
    /// Requests from clients and executors that came a second time.
    pub copied: u64,
}

struct State {
    weather: Weather,
    cut: BTreeSet<(Process, Process)>,
    off: BTreeSet<Process>,
    /// How many new connections these ports still refuse although their processes live.
    refusing: BTreeMap<Process, u64>,
    /// How often the ports of each node were opened and closed: what was sent to one of its processes does not
    /// reach the next.
    lives: BTreeMap<Process, u64>,
    peers: BTreeMap<Process, Arc<dyn PeerService>>,
    http: BTreeMap<Process, Router>,
    lanes: BTreeMap<(Process, Process, Lane), Connection>,
    traffic: Traffic,
    tap: Option<Tap>,
    answer_tap: Option<AnswerTap>,
    /// Executors that are suspended as soon as they have sent their next heartbeat.
    frozen_at_heartbeat: BTreeSet<Process>,
    /// Whose requests of what kind stay on the wire, and how many do.
    held: BTreeMap<Process, (&'static str, u64)>,
    /// The last that was said under an epoch, oldest first, and by whom.
    said: VecDeque<(Process, Request)>,
    probe_tap: Option<ProbeTap>,
}

/// One connection of a lane. When it breaks, what was sent over it may still arrive, but no answer comes back.
struct Connection {
    parcels: mpsc::UnboundedSender<Parcel>,
    broken: Arc<AtomicBool>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}

struct Parcel {
    at: Instant,
    request: Bytes,
    broken: Arc<AtomicBool>,
    answer: oneshot::Sender<Result<Bytes, CallError>>,
}

/// The network of one run.
pub struct Network {
    state: Mutex<State>,
}

/// The name of a process in the trace: nodes from 1, executors from 10, clients from 60.
pub fn name(process: Process) -> String {
    match process {
        WORLD => "world".into(),
        1..10 => format!("n{process}"),
        10..60 => format!("x{process}"),
        _ => format!("c{process}"),
    }
}

/// The base URL of a node's interface.
pub fn url(node: Process) -> String {
    format!("http://n{node}:7001")
}

fn node_of(url: &str) -> Option<Process> {
    url.strip_prefix("http://n")?
        .strip_suffix(":7001")?
        .parse()
        .ok()
}

fn digest(bytes: &[u8]) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3);
        hash ^= hash >> 29;
    }
    (hash >> 32) as u32
}

impl Network {
    /// A calm network without any process.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                weather: Weather::default(),
                cut: BTreeSet::new(),
                off: BTreeSet::new(),
                refusing: BTreeMap::new(),
                lives: BTreeMap::new(),
                peers: BTreeMap::new(),
                http: BTreeMap::new(),
                lanes: BTreeMap::new(),
                traffic: Traffic::default(),
                tap: None,
                answer_tap: None,
                frozen_at_heartbeat: BTreeSet::new(),
                held: BTreeMap::new(),
                said: VecDeque::new(),
                probe_tap: None,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets who sees requests between nodes, and what is answered.
    pub fn set_taps(&self, tap: Tap, answer_tap: AnswerTap) {
        let mut state = self.state();
        state.tap = Some(tap);
        state.answer_tap = Some(answer_tap);
    }

    /// Suspends an executor as soon as it has sent its next heartbeat.
    pub fn freeze_at_heartbeat(&self, process: Process) {
        self.state().frozen_at_heartbeat.insert(process);
    }

    /// Takes that back, if it has not come to it.
    pub fn unfreeze(&self, process: Process) {
        self.state().frozen_at_heartbeat.remove(&process);
    }

    /// Sets who sees probes.
    pub fn set_probe_tap(&self, tap: ProbeTap) {
        self.state().probe_tap = Some(tap);
    }

    /// A node's peer port refuses so many new connections, whether its process lives or not.
    pub fn refuse(&self, node: Process, connections: u64) {
        self.state().refusing.insert(node, connections);
    }

    /// A node's peer port is as open as its process.
    pub fn refuse_no_more(&self, node: Process) {
        self.state().refusing.remove(&node);
    }

    /// Breaks the connections between a node and its peers, all or those with one of them.
    pub fn break_connections(&self, node: Process, with: Option<Process>) {
        let goes = |from: Process, to: Process| {
            let other = if from == node { to } else { from };
            (from == node || to == node) && with.is_none_or(|with| with == other)
        };
        let mut state = self.state();
        state.lanes.retain(|(from, to, _), _| !goes(*from, *to));
    }

    /// Whether nobody accepts a new connection to a node's peer port, and its machine says so.
    fn refuses(&self, to: Process) -> bool {
        let mut state = self.state();
        if let Some(left) = state.refusing.get_mut(&to).filter(|left| **left > 0) {
            *left -= 1;
            return true;
        }
        !state.peers.contains_key(&to)
    }

    fn is_off(&self, node: Process) -> bool {
        self.state().off.contains(&node)
    }

    /// Changes the weather.
    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// What it is like now.
    pub fn weather(&self) -> Weather {
        self.state().weather
    }

    /// What was counted so far.
    pub fn traffic(&self) -> Traffic {
        self.state().traffic
    }

    /// Puts a node's services at its addresses.
    pub fn open(&self, node: Process, peer: Arc<dyn PeerService>, http: Router) {
        let mut state = self.state();
        state.off.remove(&node);
        *state.lives.entry(node).or_default() += 1;
        state.peers.insert(node, peer);
        state.http.insert(node, http);
    }

    /// A node's ports are closed. With `silent` its machine is off, and nobody says so.
    pub fn close(&self, node: Process, silent: bool) {
        let mut state = self.state();
        *state.lives.entry(node).or_default() += 1;
        state.peers.remove(&node);
        state.http.remove(&node);
        state
            .lanes
            .retain(|(from, to, _), _| *from != node && *to != node);
        if silent {
            state.off.insert(node);
        } else {
            state.off.remove(&node);
        }
    }

    /// Cuts one direction.
    pub fn cut(&self, from: Process, to: Process) {
        self.state().cut.insert((from, to));
    }

    /// Heals one direction.
    pub fn heal(&self, from: Process, to: Process) {
        self.state().cut.remove(&(from, to));
    }

    /// Heals all.
    pub fn heal_all(&self) {
        self.state().cut.clear();
    }

    /// Whether a direction is cut.
    pub fn is_cut(&self, from: Process, to: Process) -> bool {
        self.state().cut.contains(&(from, to))
    }

    /// Forgets all services and connections.
    pub fn dissolve(&self) {
        let mut state = self.state();
        let peers = std::mem::take(&mut state.peers);
        let http = std::mem::take(&mut state.http);
        let lanes = std::mem::take(&mut state.lanes);
        let taps = (
            state.tap.take(),
            state.answer_tap.take(),
            state.probe_tap.take(),
        );
        drop(state);
        drop((peers, http, lanes, taps));
    }

    fn delay(&self) -> Duration {
        let mut state = self.state();
        let (least, most) = state.weather.delay_us;
        let mut us = chance::between(least, most);
        if chance::happens(state.weather.resent_per_mille) {
            us += chance::between(200_000, 1_500_000);
            state.traffic.resent += 1;
        }
        Duration::from_micros(us)
    }

    /// What this process sends to such a path stays on the wire, until it is released.
    pub fn hold(&self, from: Process, path_end: &'static str) {
        self.state().held.insert(from, (path_end, 0));
    }

    /// How many requests are held.
    pub fn held(&self, from: Process) -> u64 {
        self.state().held.get(&from).map_or(0, |(_, count)| *count)
    }

    /// What was held arrives.
    pub fn release(&self, from: Process) {
        self.state().held.remove(&from);
    }

    /// Has what was said last under any epoch come once more to a node, soon.
    pub fn say_again(self: &Arc<Self>, to: Process) {
        let said: Vec<_> = self.state().said.iter().cloned().collect();
        for (from, request) in said {
            let again = http::copy(self.clone(), from, to, request, 5);
            scope::spawn_in(WORLD, again);
        }
    }

    fn copies(&self) -> bool {
        chance::happens(self.state().weather.copied_per_mille)
    }

    fn breaks(&self) -> bool {
        let mut state = self.state();
        let broken = chance::happens(state.weather.broken_per_mille);
        state.traffic.lost += u64::from(broken);
        broken
    }

    fn life(&self, node: Process) -> u64 {
        self.state().lives.get(&node).copied().unwrap_or(0)
    }

    /// Waits until the direction is whole. False if the message is lost in the cut.
    async fn passes(&self, from: Process, to: Process) -> bool {
        if !self.is_cut(from, to) {
            return true;
        }
        if chance::happens(500) {
            self.state().traffic.lost += 1;
            return false;
        }
        let until = Instant::now() + RETRANSMIT_FOR;
        while self.is_cut(from, to) {
            if Instant::now() >= until {
                self.state().traffic.lost += 1;
                return false;
            }
            sleep(Duration::from_millis(chance::between(100, 400))).await;
        }
        self.state().traffic.resent += 1;
        true
    }

    /// Puts a request into its lane.
    fn post(
        self: &Arc<Self>,
        (from, to, lane): (Process, Process, Lane),
        request: Bytes,
        answer: oneshot::Sender<Result<Bytes, CallError>>,
    ) {
        let at = Instant::now() + self.delay();
        if self.breaks() {
            // What is under way goes on over the old connection; a new one begins.
            self.state().lanes.remove(&(from, to, lane));
            trace!("{} >< {} {lane:?}", name(from), name(to));
        }
        let mut state = self.state();
        state.traffic.peer += 1;
        if let Some(tap) = &mut state.tap {
            tap(from, to, lane, &request);
        }
        let connection = state.lanes.entry((from, to, lane)).or_insert_with(|| {
            let (sender, parcels) = mpsc::unbounded_channel();
            let carrier = self.clone().carry((from, to, lane), parcels);
            scope::spawn_in(WORLD, carrier);
            Connection {
                parcels: sender,
                broken: Arc::default(),
            }
        });
        let parcel = Parcel {
            at,
            request,
            broken: connection.broken.clone(),
            answer,
        };
        // The carrier lives as long as its sender.
        let _ = connection.parcels.send(parcel);
    }

    /// Delivers what comes into a lane, in order.
    async fn carry(
        self: Arc<Self>,
        (from, to, lane): (Process, Process, Lane),
        mut parcels: mpsc::UnboundedReceiver<Parcel>,
    ) {
        let mut connected = false;
        while let Some(parcel) = parcels.recv().await {
            let Parcel {
                at,
                request,
                broken,
                answer,
            } = parcel;
            sleep_until(at).await;
            let life = self.life(to);
            let (service, silent) = {
                let state = self.state();
                (state.peers.get(&to).cloned(), state.off.contains(&to))
            };
            let Some(service) = service else {
                if !silent && !self.is_cut(from, to) && !self.is_cut(to, from) {
                    let _ = answer.send(Err(CallError::Refused));
                } else {
                    self.never(answer);
                }
                continue;
            };
            if !self.passes(from, to).await {
                self.never(answer);
                continue;
            }
            if self.life(to) != life {
                // The process at the other end is gone, and the connection with it.
                continue;
            }
            if !connected && self.refuses(to) {
                let _ = answer.send(Err(CallError::Refused));
                continue;
            }
            connected = true;
            trace!(
                "{} > {} {lane:?} {} bytes {:08x}",
                name(from),
                name(to),
                request.len(),
                digest(&request)
            );
            let network = self.clone();
            scope::spawn_in(to, async move {
                let bytes = service.serve(from as u64, lane, request.clone()).await;
                let tap = network.state().answer_tap.clone();
                if let Some(tap) = tap {
                    tap(to, lane, &request, &bytes);
                }
                scope::spawn_in(WORLD, network.reply((to, from), bytes, broken, answer));
            });
        }
        if connected {
            self.hang_up(from, to).await;
        }
    }

    /// Tells the side that accepted a connection that it has ended.
    async fn hang_up(&self, from: Process, to: Process) {
        sleep(self.delay()).await;
        if self.is_off(from) || !self.passes(from, to).await {
            return;
        }
        let service = self.state().peers.get(&to).cloned();
        if let Some(service) = service {
            trace!("{} | {}", name(from), name(to));
            scope::spawn_in(to, async move { service.hung_up(from as u64) });
        }
    }

    /// Nobody answers, and nobody says so: the caller waits for its deadline.
    fn never<T: Send + 'static>(&self, answer: oneshot::Sender<T>) {
        scope::spawn_in(WORLD, async move {
            let mut answer = answer;
            answer.closed().await;
        });
    }

    async fn reply(
        self: Arc<Self>,
        (from, to): (Process, Process),
        bytes: Bytes,
        broken: Arc<AtomicBool>,
        answer: oneshot::Sender<Result<Bytes, CallError>>,
    ) {
        sleep(self.delay()).await;
        if !self.passes(from, to).await {
            return self.never(answer);
        }
        if broken.load(Ordering::Relaxed) || self.breaks() {
            return;
        }
        trace!(
            "{} < {} {} bytes {:08x}",
            name(to),
            name(from),
            bytes.len(),
            digest(&bytes)
        );
        // A caller that gave up needs no answer.
        let _ = answer.send(Ok(bytes));
    }
}

/// The link of one node to its peers.
pub struct PeerLink {
    /// The network.
    pub network: Arc<Network>,
    /// The node.
    pub node: Process,
}

impl PeerTransport for PeerLink {
    fn call(
        &self,
        to: u64,
        _address: &str,
        lane: Lane,
        request: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, CallError>> {
        let (answer, answered) = oneshot::channel();
        self.network
            .post((self.node, to as Process, lane), request, answer);
        Box::pin(async move {
            match tokio::time::timeout(timeout, answered).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(CallError::Lost),
                Err(_) => Err(silent(timeout)),
            }
        })
    }

    fn probe(
        &self,
        to: u64,
        _address: &str,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<(), CallError>> {
        let probe = probe(self.network.clone(), self.node, to as Process);
        Box::pin(async move {
            let probed = tokio::time::timeout(timeout, probe).await;
            probed.unwrap_or(Err(silent(timeout)))
        })
    }
}

fn silent(timeout: Duration) -> CallError {
    CallError::Silent {
        waited_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
    }
}

/// Opens a connection and says nothing.
async fn probe(network: Arc<Network>, from: Process, to: Process) -> Result<(), CallError> {
    sleep(network.delay()).await;
    if network.is_off(to) || !network.passes(from, to).await {
        return std::future::pending().await;
    }
    // A process that is suspended does not keep its system from accepting.
    let refused = network.refuses(to);
    let lives = network.state().peers.contains_key(&to);
    trace!("{} ? {} refused {refused}", name(from), name(to));
    sleep(network.delay()).await;
    if !network.passes(to, from).await {
        return std::future::pending().await;
    }
    if let Some(tap) = &mut network.state().probe_tap {
        tap(Probed {
            from,
            to,
            refused,
            lives,
        });
    }
    if refused {
        Err(CallError::Refused)
    } else {
        Ok(())
    }
}
