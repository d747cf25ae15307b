//! The language of the golden scripts.
//!
//! A script is a story about one cluster. It has a leader (of term 1 at first), executors by name, jobs by
//! name, and runs that are called `run1`, `run2`, … in the order in which they came; `run1/7` is shard 7 of
//! `run1`, and `run1` alone its shard 0.
//!
//! | line | what happens |
//! | --- | --- |
//! | `job NAME key=value…` | a job is put; see `words::spec` for the keys |
//! | `delete`, `pause`, `resume NAME` | |
//! | `trigger NAME [key=] [params=]` | a run is asked for |
//! | `cancel RUN REASON` | |
//! | `executor NAME [as=INSTANCE] [can=a,b] [capacity=] [version=] [ttl=] [label=k:v]` | a process registers |
//! | `beat NAME [only=TASK,…] [progress=N] [used=N] [healthy=false]` | a heartbeat, with all it believes to run |
//! | `start`, `give-back NAME TASK` | |
//! | `checkpoint NAME TASK OFFSET [bytes=N]` | |
//! | `output NAME TASK TEXT [seq=] [bytes=N]` | |
//! | `result NAME TASK ok\|fail\|fatal\|cancelled\|timeout [value=] [tail=N]` | |
//! | `drain INSTANCE within=DURATION` | an operator drains whoever has the instance id now |
//! | `drain-itself NAME within=DURATION`, `leave NAME` | a process says that it goes |
//! | `clock +10s`, `lease +10s`, `wall +1h`, `at TIME` | both clocks, one of them, or the calendar set |
//! | `plan` | what the leader proposes now, applied in order |
//! | `hold` | what the leader proposes now, but it does not reach the log |
//! | `late` | what was held reaches the log after all, with the term in which it was planned |
//! | `new-leader term=5 [grace=10s]` | another leader takes office |
//! | `fire`, `skip`, `assign`, `expire …` | one proposal of a leader by hand, well-formed or not |
//! | `snapshot` | the state goes through its records and their bytes and must come out the same |
//! | `sweep` | |
//! | `show …` | job, run, runs, tasks, shards, executors, counters, ledger, audit, explain, terms |
//!
//! `epoch=N` on an executor's line replaces the epoch it was granted; `request=KEY` on any line gives the
//! command an idempotency key; `by=NAME` has another principal ask for it. After every command a second replica has the same answer and the indexes
//! follow from the entities; at the end both replicas have the same hash.

mod show;
mod verbs;
mod words;
mod world;

use world::World;

/// Runs a script and gives it back with what came of each line.
pub(crate) fn run(name: &str, text: &str) -> String {
    let mut world = World::new();
    let mut out = String::new();
    let mut comment_after_output = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(input) = line.strip_prefix("> ") {
            let at = format!("{name}:{}", number + 1);
            out.push_str(line.trim_end());
            out.push('\n');
            for outcome in verbs::carry_out(&mut world, &at, input) {
                out.push_str("  ");
                out.push_str(outcome.trim_end());
                out.push('\n');
            }
            comment_after_output = true;
        } else if line.starts_with('#') || line.trim().is_empty() {
            out.push_str(line.trim_end());
            out.push('\n');
        } else {
            assert!(
                comment_after_output && line.starts_with("  "),
                "{name}:{}: neither an input, a comment nor an outcome: {line}",
                number + 1
            );
        }
    }
    world.finish();
    out
}
