//! `tenure task …`: for scripts that run as a task of the built-in executor.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tenure_api::Bytes;
use tenure_api::protocol::MAX_CHECKPOINT_BYTES;

use super::args::{Global, TaskCommand, TaskSocket};
use super::failure::{Exit, Failure};
use super::out::{Format, Out, Stop};
use super::table::{Table, instant};
use crate::executor::channel::client::{ChannelError, ask};
use crate::executor::channel::{Answer, Context, Request};

/// Runs the command.
///
/// # Errors
/// Why it ended early.
pub(super) async fn run(
    command: TaskCommand,
    global: &Global,
    out: &mut Out<'_>,
) -> Result<(), Stop> {
    let (request, TaskSocket { socket }) = match command {
        TaskCommand::Checkpoint {
            offset,
            state,
            socket,
        } => {
            let state = state.map_or(Ok(Vec::new()), |path| read_state(&path, &mut io::stdin()))?;
            let state = Bytes::from(state);
            (Request::Checkpoint { offset, state }, socket)
        }
        TaskCommand::Progress { value, socket } => (Request::Progress { value }, socket),
        TaskCommand::Context { socket } => (Request::Context, socket),
    };
    let Some(socket) = socket else {
        return Err(no_task().into());
    };
    let limit = global.timeout.to_duration();
    let answer = ask(&socket, &request, limit).await.map_err(not_answered)?;
    if let Answer::Context(context) = &answer {
        return out.show(context, |context| details(context));
    }
    judge(&answer)?;
    match out.format() {
        // Scripts call this in loops; silence is success.
        Format::Table => Ok(()),
        Format::Json | Format::Yaml => out.show(&answer, |_| Table::default()),
    }
}

fn no_task() -> Failure {
    Failure::usage("this is not a task: no executor has set TENURE_TASK_SOCKET").todo(
        "call it in the program or script of a job with the capability shell; there the variable is set",
    )
}

fn read_state(path: &Path, stdin: &mut dyn Read) -> Result<Vec<u8>, Failure> {
    let mut state = Vec::new();
    let mut read = |from: &mut dyn Read| {
        from.take(MAX_CHECKPOINT_BYTES as u64 + 1)
            .read_to_end(&mut state)
    };
    let read = if path.as_os_str() == "-" {
        read(stdin)
    } else {
        File::open(path).and_then(|mut file| read(&mut file))
    };
    read.map_err(|fault| Failure::io(path.display(), &fault))?;
    if state.len() > MAX_CHECKPOINT_BYTES {
        return Err(Failure::new(
            Exit::Refused,
            format!("the state has more than {MAX_CHECKPOINT_BYTES} bytes"),
        )
        .at(path.display())
        .todo("keep it elsewhere and commit a reference to it"));
    }
    Ok(state)
}

fn not_answered(fault: ChannelError) -> Failure {
    let exit = match &fault {
        // The executor is gone, and the right to run with it.
        ChannelError::Unreachable { .. } => Exit::TenureOver,
        ChannelError::NoAnswer(_) => Exit::OutcomeUnknown,
    };
    let action = match exit {
        Exit::TenureOver => "stop: this task is run by nobody any more",
        _ => "ask again: the same checkpoint may be committed twice",
    };
    Failure::new(exit, fault.to_string()).todo(action)
}

fn judge(answer: &Answer) -> Result<(), Failure> {
    match answer {
        Answer::Committed { .. } | Answer::Noted { .. } | Answer::Context(_) => Ok(()),
        Answer::Fenced { detail } => Err(Failure::new(Exit::TenureOver, detail)
            .todo("stop at once and write nothing more: another owner may hold the shard")),
        Answer::Refused { code, detail } => {
            Err(Failure::new(Exit::Refused, format!("{detail} [{code}]")))
        }
        Answer::Unavailable { detail } => Err(Failure::new(Exit::Unavailable, detail)
            .todo("ask again: the same checkpoint may be committed twice")),
    }
}

fn details(context: &Context) -> Table {
    let mut table = Table::of_fields();
    table.field(
        "job",
        format!("{} (revision {})", context.job, context.revision),
    );
    table.field("run", context.run);
    table.field("scheduled", instant(context.scheduled_at));
    table.field(
        "shard",
        format!("{} of {}", context.shard, context.shard_count),
    );
    table.field("attempt", context.attempt);
    table.field("epoch", context.epoch);
    table.field("term", context.term);
    table.field("generation", context.generation);
    table.field("fencing token", context.fencing_token);
    table.field("fencing scope", &context.fencing_scope);
    if let Some(checkpoint) = &context.checkpoint {
        table.field(
            "checkpoint",
            format!(
                "{} ({} bytes of state)",
                checkpoint.offset,
                checkpoint.state.len()
            ),
        );
    }
    table.optional("last progress", context.last_progress);
    table.field("params", &context.params);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_can_tell_when_to_stop() {
        let exit = |answer: Answer| judge(&answer).err().map(|fault| fault.exit);
        let detail = || "x".to_owned();
        assert_eq!(exit(Answer::Committed { offset: 1 }), None);
        assert_eq!(exit(Answer::Noted { value: 1 }), None);
        assert_eq!(
            exit(Answer::Fenced { detail: detail() }),
            Some(Exit::TenureOver)
        );
        let refused = Answer::Refused {
            code: "checkpoint_regressed".into(),
            detail: detail(),
        };
        assert_eq!(exit(refused), Some(Exit::Refused));
        assert_eq!(
            exit(Answer::Unavailable { detail: detail() }),
            Some(Exit::Unavailable)
        );
        let gone = ChannelError::Unreachable {
            path: "x".into(),
            fault: io::ErrorKind::ConnectionRefused.into(),
        };
        assert_eq!(not_answered(gone).exit, Exit::TenureOver);
    }

    #[test]
    fn state_is_read_from_a_file_or_from_input_and_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, b"\x00a").unwrap();
        assert_eq!(read_state(&path, &mut io::empty()).unwrap(), b"\x00a");
        let stdin = Path::new("-");
        assert_eq!(read_state(stdin, &mut b"b".as_slice()).unwrap(), b"b");
        let fault = read_state(stdin, &mut io::repeat(0)).unwrap_err();
        assert_eq!(fault.exit, Exit::Refused);
        assert!(read_state(&folder.path().join("none"), &mut io::empty()).is_err());
    }
}
