//! The command line: what can be asked, and what each word means.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use tenure_api::cluster::Role;
use tenure_api::ids::Capability;
use tenure_api::runs::RunState;
use tenure_api::{InstanceId, JobName, Millis, Revision, RunId, Timestamp};

use super::failure::EXIT_CODES;
use super::out::Format;
use crate::executor::http::addresses::Network;
use crate::executor::http::target::HostRule;
use crate::executor::pattern::Pattern;

/// A job scheduler that is its own database.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, about, after_help = EXIT_CODES)]
#[command(arg_required_else_help = true, propagate_version = true)]
pub struct Cli {
    /// What applies to every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What applies to every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Nodes of the cluster, separated by commas: http://host:port. One will do.
    #[arg(
        long,
        global = true,
        env = "TENURE_NODES",
        value_delimiter = ',',
        value_name = "URL"
    )]
    pub nodes: Vec<String>,
    /// A file that holds the token. TENURE_TOKEN holds the token itself.
    #[arg(long, global = true, env = "TENURE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Refused: see the message.
    #[arg(long, global = true, hide = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// How results are written.
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub output: Format,
    /// How long to try, in all.
    #[arg(long, global = true, default_value = "30s", value_name = "TIME", value_parser = some_time)]
    pub timeout: Millis,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node of a cluster.
    Server(ServerArgs),
    /// Prepare the data folder of a node.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Run a whole cluster on this machine, with an executor and the example jobs.
    Dev(DevArgs),
    /// Run an executor with the capabilities shell and http.
    Executor(Box<ExecutorArgs>),
    /// Jobs: what runs, and when.
    #[command(subcommand)]
    Job(JobCommand),
    /// Runs: what ran, and how it went.
    #[command(subcommand)]
    Run(RunCommand),
    /// Executors: who runs it.
    #[command(subcommand)]
    Executors(ExecutorsCommand),
    /// The cluster: who decides.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// For scripts that run as a task: talk to the executor that started them.
    #[command(subcommand)]
    Task(TaskCommand),
    /// Tokens.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Print completions for a shell.
    Completions {
        /// Which shell.
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// A node.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// The node's configuration.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Listen beyond loopback although nothing is encrypted.
    #[arg(long)]
    pub insecure_network: bool,
    /// Stop when standard input ends.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

/// A node's folder.
#[derive(Clone, Debug, Subcommand)]
pub enum NodeCommand {
    /// Make the data folder of a new node, once.
    Init {
        /// The node's configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Make it although the other nodes have a cluster already. Only for a node that has never run.
        #[arg(long)]
        never_ran: bool,
    },
}

/// A cluster for development.
#[derive(Clone, Debug, Args)]
pub struct DevArgs {
    /// Where everything is kept.
    #[arg(long, default_value = ".tenure-dev", value_name = "DIR")]
    pub dir: PathBuf,
    /// Node 1 listens on the port after this one (HTTP) and on the eleventh (peers), and so on. Chosen at the
    /// first start; 7400 when not given.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..=65_000))]
    pub base_port: Option<u16>,
    /// A folder with job files to apply, in place of the examples that the program carries.
    #[arg(long, value_name = "DIR")]
    pub examples: Option<PathBuf>,
    /// Print lines instead of a screen.
    #[arg(long)]
    pub plain: bool,
}

/// An executor. Flags go over the configuration file.
#[derive(Clone, Debug, Default, Args)]
pub struct ExecutorArgs {
    /// A configuration file (TOML).
    #[arg(long, env = "TENURE_EXECUTOR_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the executor keeps its identity. Each executor needs one of its own. When not given:
    /// $STATE_DIRECTORY (of systemd), else ~/.local/state/tenure-executor.
    #[arg(long, env = "TENURE_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Below what folder tasks get their private ones.
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    /// The lasting identity. Made on the first start and kept when not given.
    #[arg(long, value_name = "ID")]
    pub instance_id: Option<InstanceId>,
    /// The version that jobs may ask for.
    #[arg(long, value_name = "VERSION")]
    pub executor_version: Option<String>,
    /// A label that jobs select by.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// How many tasks run at once.
    #[arg(long, value_name = "SLOTS")]
    pub capacity: Option<u32>,
    /// The lease to ask for.
    #[arg(long, value_name = "TIME")]
    pub lease_ttl: Option<Millis>,
    /// The time between SIGTERM and SIGKILL for a task that must stop.
    #[arg(long, value_name = "TIME")]
    pub stop_grace: Option<Millis>,
    /// How long running tasks may take to finish when the executor leaves.
    #[arg(long, value_name = "TIME")]
    pub drain_timeout: Option<Millis>,
    /// Offer the capability shell.
    #[arg(long)]
    pub enable_shell: bool,
    /// A program that jobs may run: an absolute path, `*` within one part. Any when never given.
    #[arg(long = "allow-command", value_name = "PATTERN")]
    pub allow_commands: Vec<Pattern>,
    /// Let jobs bring scripts of their own.
    #[arg(long)]
    pub allow_scripts: bool,
    /// The user of tasks that name none. Needs root.
    #[arg(long, value_name = "USER")]
    pub run_as: Option<String>,
    /// Where tasks run that name no folder. A private folder when not given.
    #[arg(long, value_name = "DIR")]
    pub working_dir: Option<PathBuf>,
    /// Offer the capability http. It is on unless the file switches it off.
    #[arg(long, conflicts_with = "disable_http")]
    pub enable_http: bool,
    /// Do not offer the capability http.
    #[arg(long)]
    pub disable_http: bool,
    /// A host that http tasks may reach whatever its address: name, *.name, name:port.
    #[arg(long = "allow-host", value_name = "HOST")]
    pub allow_hosts: Vec<HostRule>,
    /// A block of addresses that http tasks may reach besides the public internet: 10.1.0.0/16.
    #[arg(long = "allow-network", value_name = "BLOCK")]
    pub allow_networks: Vec<Network>,
    /// Drain when standard input ends.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

fn run_state() -> impl TypedValueParser<Value = RunState> {
    PossibleValuesParser::new(RunState::ALL.iter().map(|state| state.as_str()))
        .try_map(|text| text.parse::<RunState>())
}

fn role() -> impl TypedValueParser<Value = Role> {
    PossibleValuesParser::new(Role::ALL.iter().map(|role| role.as_str()))
        .try_map(|text| text.parse::<Role>())
}

fn some_time(text: &str) -> Result<Millis, String> {
    match text.parse::<Millis>() {
        Ok(Millis(0)) => Err("must be longer than 0s: nothing can be tried in no time".to_owned()),
        Ok(time) => Ok(time),
        Err(fault) => Err(fault.to_string()),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".to_owned()),
    }
}

/// Jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Store the jobs of files. All files are checked before anything is sent.
    Apply {
        /// A job file, a folder of them (*.yaml, *.yml, *.json), or - for standard input.
        #[arg(short, long = "file", required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Say what would change, and store nothing.
        #[arg(long)]
        dry_run: bool,
        /// Whether jobs that are in no file are deleted. They never are.
        #[arg(long, default_value = "no", value_parser = ["no"], value_name = "no")]
        prune: String,
    },
    /// Show a job.
    Get {
        /// Its name.
        name: JobName,
    },
    /// List jobs.
    List {
        /// Only names that start with this.
        #[arg(long)]
        prefix: Option<String>,
        /// Only jobs that are, or are not, paused.
        #[arg(long, value_name = "true|false")]
        paused: Option<bool>,
        /// Only jobs that ask for this capability.
        #[arg(long)]
        capability: Option<Capability>,
        /// How many at most.
        #[command(flatten)]
        limit: Limit,
    },
    /// Delete a job. Its runs go with its history.
    Delete {
        /// Its name.
        name: JobName,
        /// Only if it still has this revision.
        #[arg(long, value_name = "REVISION")]
        if_revision: Option<Revision>,
    },
    /// Pause a job: instants that fall due are skipped.
    Pause {
        /// Its name.
        name: JobName,
    },
    /// Resume a job.
    Resume {
        /// Its name.
        name: JobName,
    },
    /// Start a run now.
    Trigger {
        /// The job's name.
        name: JobName,
        /// Parameters in place of the job's own, as a JSON object.
        #[arg(long, value_name = "JSON")]
        params: Option<String>,
        /// A key of your own: the same key never starts a second run.
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
    /// What was decided for each instant a job was due, and why. The latest first.
    Fires {
        /// The job's name.
        name: JobName,
        /// Only instants at or after this one: 2026-12-01T02:00:00Z.
        #[arg(long, value_name = "INSTANT")]
        from: Option<Timestamp>,
        /// Only instants before this one.
        #[arg(long, value_name = "INSTANT")]
        to: Option<Timestamp>,
        /// How many at most.
        #[command(flatten)]
        limit: Limit,
    },
    /// The next instants a job is due. With a file, nothing is asked of a cluster.
    Next {
        /// The job's name.
        #[arg(required_unless_present = "file", conflicts_with = "file")]
        name: Option<JobName>,
        /// A job file, or - for standard input.
        #[arg(short, long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// How many.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
        count: u32,
    },
}

/// How many items a list has.
#[derive(Clone, Copy, Debug, Args)]
pub struct Limit {
    /// How many at most.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

/// Runs.
#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// List runs.
    List {
        /// Only runs of this job.
        #[arg(long)]
        job: Option<JobName>,
        /// Only runs in this state.
        #[arg(long, value_parser = run_state())]
        state: Option<RunState>,
        /// How many at most.
        #[command(flatten)]
        limit: Limit,
    },
    /// Show a run with its tasks.
    Get {
        /// Its number.
        id: RunId,
    },
    /// Cancel a run.
    Cancel {
        /// Its number.
        id: RunId,
        /// Why, for the record and for the handler.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Show what a run's tasks wrote.
    Logs {
        /// Its number.
        id: RunId,
        /// Only this shard.
        #[arg(long)]
        shard: Option<u32>,
        /// Go on until the run has ended.
        #[arg(short, long)]
        follow: bool,
    },
    /// Say why a run is where it is.
    Explain {
        /// Its number.
        id: RunId,
    },
}

/// Executors.
#[derive(Debug, Subcommand)]
pub enum ExecutorsCommand {
    /// List executors.
    List {
        /// How many at most.
        #[command(flatten)]
        limit: Limit,
    },
    /// Show an executor with the tasks it holds.
    Get {
        /// Its instance id.
        instance: InstanceId,
    },
    /// Ask an executor to finish what it has and leave.
    Drain {
        /// Its instance id.
        instance: InstanceId,
        /// How long running work may still take.
        #[arg(long, default_value = "60s", value_name = "TIME")]
        deadline: Millis,
    },
}

/// The cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show the cluster as one node sees it.
    Status,
    /// Make a cluster out of empty nodes, once.
    Initialize {
        /// A first member: ID,PEER-ADDRESS,API-URL such as 1,10.0.0.1:7421,http://10.0.0.1:7411.
        #[arg(long = "member", value_name = "MEMBER", conflicts_with = "config")]
        members: Vec<String>,
        /// The configuration of any of the nodes: its members are the first ones.
        #[arg(long, value_name = "FILE", required_unless_present = "members")]
        config: Option<PathBuf>,
    },
}

/// What a script that runs as a task may ask.
#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// Commit a checkpoint: all effects up to the offset are done. Returns when it is durable.
    Checkpoint {
        /// How far the work is done. Never goes back.
        #[arg(long)]
        offset: u64,
        /// A file with the task's own state, at most 64 KiB, or - for standard input.
        #[arg(long, value_name = "FILE")]
        state: Option<PathBuf>,
        /// The task's socket.
        #[command(flatten)]
        socket: TaskSocket,
    },
    /// Say how far the work is. Commits nothing.
    Progress {
        /// How far.
        value: u64,
        /// The task's socket.
        #[command(flatten)]
        socket: TaskSocket,
    },
    /// Print what the task is: job, run, shard, epoch, token, checkpoint, parameters.
    Context {
        /// The task's socket.
        #[command(flatten)]
        socket: TaskSocket,
    },
}

/// Where a task's executor listens.
#[derive(Clone, Debug, Args)]
pub struct TaskSocket {
    /// The socket of the task; the executor sets it.
    #[arg(
        long,
        env = "TENURE_TASK_SOCKET",
        value_name = "PATH",
        hide_env_values = true
    )]
    pub socket: Option<PathBuf>,
}

/// Tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token: prints it once, with the line for the nodes' file of tokens.
    Generate {
        /// Whose it is.
        #[arg(long)]
        name: String,
        /// What it allows.
        #[arg(long, value_parser = role())]
        role: Role,
    },
}

impl Limit {
    /// How many items are asked for at once.
    pub fn page(self) -> u32 {
        self.limit.min(tenure_api::paging::MAX_PAGE_ITEMS)
    }

    /// How many items there may be.
    pub fn most(self) -> usize {
        usize::try_from(self.limit).unwrap_or(usize::MAX)
    }
}
