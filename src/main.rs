//! The one binary.

use std::path::Path;
use std::process::ExitCode;

use tenure::cli::args::{DevArgs, ServerArgs};
use tenure::cli::failure::{Exit, Failure};
use tenure::cli::{Processes, logging, main as command_line};
use tenure::config::NodeConfig;
use tenure::dev::DevOptions;
use tenure::{dev, http, node, signals};

/// The exit code of a node that cannot go on (`EX_SOFTWARE` of sysexits).
const FATAL: i32 = 70;

fn main() -> ExitCode {
    let processes = Processes {
        server,
        node_init,
        dev: run_dev,
        next_fires: |spec, now, count| {
            http::next_of_file(spec, now, count)
                .map_err(|fault| Failure::new(Exit::Refused, fault.to_string()).at("trigger"))
        },
    };
    command_line(std::env::args_os(), processes)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failure, error.to_string())
}

fn on_runtime<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("the runtime", &error))?;
    runtime.block_on(work)
}

fn server(args: ServerArgs) -> Result<(), Failure> {
    if args.stop_with_stdin {
        signals::leave_terminal();
    }
    logging::start()?;
    let config = NodeConfig::load(&args.config, args.insecure_network).map_err(failed)?;
    on_runtime(async {
        let node = node::start(config, |why| {
            // Whatever is acknowledged is on disk; whatever is not must not be.
            tracing::error!(why, "the node cannot go on");
            std::process::exit(FATAL);
        })
        .await
        .map_err(failed)?;
        if args.stop_with_stdin {
            signals::stop_requested_or_stdin_closed().await;
        } else {
            signals::stop_requested().await;
        }
        node.stop().await;
        Ok(())
    })
}

fn node_init(path: &Path, never_ran: bool) -> Result<(), Failure> {
    let config = NodeConfig::load(path, true).map_err(failed)?;
    on_runtime(async {
        if !never_ran && let Some(member) = node::made_cluster(&config).await.map_err(failed)? {
            let id = config.node_id;
            let what = format!(
                "{member} says that the cluster was made already: if node {id} has run in it, an empty folder has \
                 lost its vote and what it acknowledged, and committed entries could be lost with them"
            );
            let action = format!(
                "bring the folder of node {id} back; if it is lost, go on without the node (docs/operations.md). Only \
                 if node {id} has never run, say so: tenure node init --never-ran"
            );
            return Err(Failure::new(Exit::Refused, what)
                .at(config.data_dir.display())
                .todo(action));
        }
        node::initialize_folder(&config).await.map_err(failed)
    })
}

fn run_dev(args: DevArgs) -> Result<(), Failure> {
    let DevArgs {
        dir,
        base_port,
        examples,
        plain,
    } = args;
    let options = DevOptions {
        dir,
        base_port,
        examples,
        plain,
    };
    on_runtime(async { dev::run(options).await.map_err(failed) })
}
