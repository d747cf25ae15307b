//! The command line.
//!
//! Commands about jobs, runs, executors and the cluster use the SDK's client and the interface's own
//! types, and nothing else of this program: what they can do, any client can. `tenure task` talks to
//! the executor that started the script. `server`, `node`, `dev` and the scheduler's reading of a job file are
//! handed in by the binary (see [`Processes`]).
//!
//! Results go to standard output, faults to standard error with what, where and what to do. Exit
//! codes are in [`failure::Exit`].

pub mod args;
mod cluster;
mod connect;
mod executor;
mod executors;
pub mod failure;
mod files;
mod jobs;
pub mod logging;
mod out;
mod runs;
mod table;
mod task;
mod token;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser as _};
use tenure_api::jobs::NextFires;
use tenure_api::{JobSpec, Timestamp};

use self::args::{Cli, Command, DevArgs, NodeCommand, ServerArgs};
use self::failure::{Exit, Failure};
use self::out::{Out, Stop};

/// What the binary does beside the command line. Each makes the runtime it needs.
#[derive(Clone, Copy, Debug)]
pub struct Processes {
    /// Runs a node until it is told to stop.
    pub server: fn(ServerArgs) -> Result<(), Failure>,
    /// Makes the data folder of a new node; the path is its configuration, and the flag says that it has never
    /// run, whatever the other nodes say.
    pub node_init: fn(&Path, bool) -> Result<(), Failure>,
    /// Runs a cluster for development until it is told to stop.
    pub dev: fn(DevArgs) -> Result<(), Failure>,
    /// The next instants of a job file after one, as the scheduler would decide them.
    pub next_fires: NextOfFile,
}

/// Job file, from when, how many.
pub type NextOfFile = fn(&JobSpec, Timestamp, u32) -> Result<NextFires, Failure>;

/// Does what the command line says.
pub fn main(arguments: impl IntoIterator<Item = OsString>, processes: Processes) -> ExitCode {
    let terminal = io::stdout().is_terminal();
    let stdout = &mut io::stdout().lock();
    let (exit, message) = run(arguments, processes, stdout, terminal);
    if let Some(message) = message {
        // Without standard error there is nobody to tell.
        let _ = writeln!(io::stderr().lock(), "{}", message.trim_end());
    }
    ExitCode::from(exit.code())
}

/// The same with another standard output: gives the exit code and what belongs on standard error.
fn run(
    arguments: impl IntoIterator<Item = OsString>,
    processes: Processes,
    stdout: &mut dyn Write,
    terminal: bool,
) -> (Exit, Option<String>) {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(fault) if fault.use_stderr() => {
            let fault = with_whole_usage(fault, &arguments);
            return (Exit::Usage, Some(fault.to_string()));
        }
        // Help and version were asked for.
        Err(help) => {
            let mut out = Out::new(stdout, out::Format::Table, terminal);
            return ended(out.text(&help.to_string()));
        }
    };
    let mut out = Out::new(stdout, cli.global.output, terminal);
    ended(dispatch(cli, processes, &mut out))
}

/// The usage of the command that was meant, whatever was given. By itself it would list what the environment
/// has set as if that were required on the command line.
fn with_whole_usage(mut fault: clap::Error, arguments: &[OsString]) -> clap::Error {
    if fault.get(ContextKind::Usage).is_none() {
        return fault;
    }
    let mut root = Cli::command();
    root.build();
    let mut meant = &root;
    for word in arguments {
        meant = meant.find_subcommand(word).unwrap_or(meant);
    }
    let usage = meant.clone().render_usage();
    fault.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    fault
}

fn ended(result: Result<(), Stop>) -> (Exit, Option<String>) {
    match result {
        Ok(()) | Err(Stop::Unread) => (Exit::Ok, None),
        Err(Stop::With(exit)) => (exit, None),
        Err(Stop::Failed(failure)) => (failure.exit, Some(failure.to_string())),
    }
}

fn dispatch(cli: Cli, processes: Processes, out: &mut Out<'_>) -> Result<(), Stop> {
    let Cli { global, command } = cli;
    if global.token.is_some() {
        return Err(refused_token().into());
    }
    match command {
        Command::Server(args) => Ok((processes.server)(args)?),
        Command::Node(NodeCommand::Init { config, never_ran }) => {
            (processes.node_init)(&config, never_ran)?;
            out.say("the node's folder is ready")
        }
        Command::Dev(args) => Ok((processes.dev)(args)?),
        Command::Executor(args) => {
            logging::start()?;
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build();
            Ok(block_on(runtime, executor::run(*args, &global))??)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
            out.bytes(&script)
        }
        Command::Token(command) => token::run(command, out),
        Command::Job(command) => {
            on_one_thread(jobs::run(command, &global, processes.next_fires, out))
        }
        Command::Run(command) => on_one_thread(runs::run(command, &global, out)),
        Command::Executors(command) => on_one_thread(executors::run(command, &global, out)),
        Command::Cluster(command) => on_one_thread(cluster::run(command, &global, out)),
        Command::Task(command) => on_one_thread(task::run(command, &global, out)),
    }
}

/// Never shows the token again.
fn refused_token() -> Failure {
    Failure::usage(
        "a token on the command line is seen by every user of this machine and kept in the shell's history",
    )
    .at("--token")
    .todo("put it into a file (--token-file) or into TENURE_TOKEN, and make a new token in place of this one")
}

fn on_one_thread(work: impl Future<Output = Result<(), Stop>>) -> Result<(), Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    block_on(runtime, work)?
}

fn block_on<T>(
    runtime: io::Result<tokio::runtime::Runtime>,
    work: impl Future<Output = T>,
) -> Result<T, Failure> {
    let runtime = runtime.map_err(|fault| Failure::io("the runtime", &fault))?;
    Ok(runtime.block_on(work))
}

#[cfg(test)]
mod tests;
