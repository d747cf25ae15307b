//! An executor's settings.

use super::handler::{self, Handler, ReturnValue, TaskError};
use super::session::Wish;
use super::{Config, Core, Executor, HealthProbe, TaskContext};
use crate::caller::Caller;
use crate::environment::Environment;
use crate::error::BuildError;
use crate::http::HttpTransport;
use crate::retry::RetryPolicy;
use crate::transport::Transport;
use crate::watched::Watched;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::future::Future;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tenure_api::InstanceId;
use tenure_api::ids::Capability;
use tenure_api::protocol::{
    DEFAULT_LEASE_TTL_MS, MAX_CAPABILITIES, MAX_CAPACITY, MAX_LABEL_BYTES, MAX_LABELS,
    RegisterRequest,
};

/// Where the instance id comes from.
#[derive(Default)]
enum Instance {
    /// The host's name and chance: a new one each time the process starts.
    #[default]
    Random,
    Given(String),
    /// Read from a file, which is made on the first start.
    File(PathBuf),
}

/// Makes an [`Executor`].
pub struct ExecutorBuilder {
    nodes: Vec<String>,
    token: Option<String>,
    instance: Instance,
    version: String,
    labels: BTreeMap<String, String>,
    capacity: u32,
    handlers: BTreeMap<String, Handler>,
    lease_ttl: Option<Duration>,
    health: Option<HealthProbe>,
    cancel_grace: Duration,
    drain_timeout: Duration,
    policy: RetryPolicy,
    transport: Option<Arc<dyn Transport>>,
    environment: Environment,
}

impl fmt::Debug for ExecutorBuilder {
    /// Leaves out the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExecutorBuilder({:?})", self.nodes)
    }
}

impl Default for ExecutorBuilder {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            token: None,
            instance: Instance::Random,
            version: "0.0.0".to_owned(),
            labels: BTreeMap::new(),
            capacity: 1,
            handlers: BTreeMap::new(),
            lease_ttl: None,
            health: None,
            cancel_grace: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(60),
            policy: RetryPolicy::default(),
            transport: None,
            environment: Environment::default(),
        }
    }
}

impl ExecutorBuilder {
    /// Adds a node of the cluster: `http://host:port`. Any of them will do; more are better.
    #[must_use]
    pub fn node(mut self, address: impl Into<String>) -> Self {
        self.nodes.push(address.into());
        self
    }

    /// Adds nodes of the cluster.
    #[must_use]
    pub fn nodes<I, T>(mut self, addresses: I) -> Self
    where
        I: IntoIterator<Item = T>,
        T: Into<String>,
    {
        self.nodes.extend(addresses.into_iter().map(Into::into));
        self
    }

    /// The bearer token, of the executor role.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The lasting identity. A process that starts under it takes over from the one before, which
    /// is what a restart wants. Two processes at once must not share it. The default is the host's
    /// name with a random part, new for each process.
    #[must_use]
    pub fn instance_id(mut self, id: impl Into<String>) -> Self {
        self.instance = Instance::Given(id.into());
        self
    }

    /// Keeps the lasting identity in a file, which is made on the first start.
    #[must_use]
    pub fn instance_id_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.instance = Instance::File(path.into());
        self
    }

    /// The executor's version (semantic versioning), matched by jobs that ask for one.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// A label that jobs select by.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// How many tasks run at once. The default is one.
    #[must_use]
    pub fn capacity(mut self, slots: u32) -> Self {
        self.capacity = slots;
        self
    }

    /// A handler, by the capability that jobs ask for. It runs on the executor's runtime, so work
    /// that blocks belongs into `spawn_blocking`.
    #[must_use]
    pub fn handler<F, Fut, T>(mut self, capability: impl Into<String>, handler: F) -> Self
    where
        F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, TaskError>> + Send + 'static,
        T: ReturnValue,
    {
        self.handlers
            .insert(capability.into(), handler::boxed(handler));
        self
    }

    /// The lease to ask for. The cluster may grant another one.
    #[must_use]
    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.lease_ttl = Some(ttl);
        self
    }

    /// Asked before each heartbeat. While it says false, no new work is assigned; the lease is
    /// kept. It must return at once: let it read a flag.
    #[must_use]
    pub fn health(mut self, probe: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.health = Some(Arc::new(probe));
        self
    }

    /// How long a handler that was told to stop may take to do so, before it is dropped. The
    /// default is 10 s. A lost lease leaves no such time.
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = grace;
        self
    }

    /// How long a drain may take when its asker does not say, and after a signal. The default is
    /// 60 s.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// How long to try each call.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Another transport than HTTP, for tests and simulations.
    #[must_use]
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Another clock, chance and tasks, for tests and simulations.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Checks the settings. Nothing is sent yet.
    pub fn build(self) -> Result<Executor, BuildError> {
        let capabilities = capabilities(&self.handlers)?;
        check_labels(&self.labels)?;
        if !(1..=MAX_CAPACITY).contains(&self.capacity) {
            let message = format!("must be from 1 to {MAX_CAPACITY}");
            return Err(BuildError::new("capacity", message));
        }
        let instance_id = match self.instance {
            Instance::Given(id) => checked_instance(id)?,
            Instance::Random => new_instance(&self.environment)?,
            Instance::File(path) => instance_from_file(&path, &self.environment)?,
        };
        let ttl_ms = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let lease_ttl_ms = self.lease_ttl.map(ttl_ms);
        let register = RegisterRequest {
            instance_id,
            version: self.version,
            capabilities,
            labels: self.labels,
            capacity: self.capacity,
            lease_ttl_ms,
        };
        let config = Config {
            register,
            capacity: self.capacity,
            health: self.health,
            cancel_grace: self.cancel_grace,
            drain_timeout: self.drain_timeout,
            lost_results_limit: Duration::from_millis(lease_ttl_ms.unwrap_or(DEFAULT_LEASE_TTL_MS)),
        };
        let transport = self
            .transport
            .unwrap_or_else(|| Arc::new(HttpTransport::new()));
        let caller = Caller::new(
            transport,
            self.environment,
            self.policy,
            &self.nodes,
            self.token,
        )?;
        let wish = Watched::new(Wish::Run);
        let core = Core {
            caller,
            config,
            handlers: self.handlers,
            wish,
        };
        Ok(Executor {
            core: Arc::new(core),
        })
    }
}

fn capabilities(handlers: &BTreeMap<String, Handler>) -> Result<Vec<Capability>, BuildError> {
    if handlers.is_empty() || handlers.len() > MAX_CAPABILITIES {
        let message = format!("give 1 to {MAX_CAPABILITIES} handlers");
        return Err(BuildError::new("handler", message));
    }
    handlers
        .keys()
        .map(|name| {
            Capability::new(name.as_str())
                .map_err(|refused| BuildError::new("handler", format!("\"{name}\" {refused}")))
        })
        .collect()
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), BuildError> {
    if labels.len() > MAX_LABELS {
        return Err(BuildError::new(
            "label",
            format!("give at most {MAX_LABELS} labels"),
        ));
    }
    for (name, value) in labels {
        if name.is_empty() || name.len() > MAX_LABEL_BYTES || value.len() > MAX_LABEL_BYTES {
            let message = format!("names and values have at most {MAX_LABEL_BYTES} bytes");
            return Err(BuildError::new("label", message));
        }
    }
    Ok(())
}

fn checked_instance(id: String) -> Result<InstanceId, BuildError> {
    InstanceId::new(id).map_err(|refused| BuildError::new("instance_id", refused.to_string()))
}

fn new_instance(environment: &Environment) -> Result<InstanceId, BuildError> {
    const HOST_CHARS: usize = 64;
    let host: String = host_name()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(HOST_CHARS)
        .collect();
    let host = if host.is_empty() {
        "executor".to_owned()
    } else {
        host
    };
    checked_instance(format!("{host}-{:016x}", environment.entropy.next_u64()))
}

#[cfg(target_os = "linux")]
fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(not(target_os = "linux"))]
fn host_name() -> String {
    std::env::var("HOSTNAME")
        .or_else(|_| std::env::var("COMPUTERNAME"))
        .unwrap_or_default()
}

/// Reads the id, or makes one and keeps it. The file appears whole or not at all.
fn instance_from_file(path: &Path, environment: &Environment) -> Result<InstanceId, BuildError> {
    let fault = |what: &str, error: std::io::Error| {
        BuildError::new(
            "instance_id_file",
            format!("{}: {what}: {error}", path.display()),
        )
    };
    match fs::read_to_string(path) {
        Ok(text) => return checked_instance(text.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(fault("cannot be read", error)),
    }
    let id = new_instance(environment)?;
    let temporary = path.with_extension(format!("{:016x}.new", environment.entropy.next_u64()));
    let written = fs::File::create_new(&temporary).and_then(|mut file| {
        file.write_all(id.as_str().as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        // A link does not replace: of two processes that start at once, one wins and both use it.
        match fs::hard_link(&temporary, path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    });
    let removed = fs::remove_file(&temporary);
    written
        .and(removed)
        .map_err(|error| fault("cannot be written", error))?;
    let text = fs::read_to_string(path).map_err(|error| fault("cannot be read", error))?;
    checked_instance(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> ExecutorBuilder {
        ExecutorBuilder::default()
            .node("127.0.0.1:7001")
            .token("secret-token")
            .handler("echo", |task: TaskContext| async move {
                Ok(task.raw_params().clone())
            })
    }

    #[test]
    fn settings_are_checked_and_named() {
        let refused = |builder: ExecutorBuilder| builder.build().unwrap_err().setting;
        assert_eq!(refused(ExecutorBuilder::default()), "handler");
        assert_eq!(refused(builder().capacity(0)), "capacity");
        assert_eq!(refused(builder().instance_id("a/b")), "instance_id");
        assert_eq!(refused(builder().label("", "x")), "label");
        assert_eq!(refused(builder().node("ftp://n1:1")), "node");
        assert_eq!(refused(builder().token("")), "token");
        let bad_name = builder().handler("No Name", |_: TaskContext| async { Ok(()) });
        assert_eq!(refused(bad_name), "handler");
        assert!(builder().build().is_ok());
    }

    #[test]
    fn the_token_is_not_shown() {
        let executor = builder().build().unwrap();
        let shown = format!("{:?} {:?} {:?}", builder(), executor, executor.handle());
        assert!(!shown.contains("secret-token"), "{shown}");
    }

    #[test]
    fn each_process_gets_its_own_id_but_a_file_keeps_it() {
        let id = |builder: ExecutorBuilder| {
            builder
                .build()
                .unwrap()
                .handle()
                .instance_id()
                .as_str()
                .to_owned()
        };
        assert_ne!(id(builder()), id(builder()));
        let folder = std::env::temp_dir().join(format!("tenure-{:x}", crate::OsEntropy.next()));
        fs::create_dir(&folder).unwrap();
        let file = folder.join("instance");
        let first = id(builder().instance_id_file(&file));
        assert_eq!(id(builder().instance_id_file(&file)), first);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::write(&file, "not an id").unwrap();
        assert!(builder().instance_id_file(&file).build().is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    impl crate::OsEntropy {
        fn next(self) -> u64 {
            use crate::environment::Entropy as _;
            self.next_u64()
        }
    }
}
