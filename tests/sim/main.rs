//! The simulation from the command line: seeds on all cores, a summary, and the story of a failure.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program speaks to people, of real time too; it is around the runs, not in them"
)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tenure_sim::failover::{Failover, measure};
use tenure_sim::run::{Report, run};

/// A month.
const MOST_MINUTES: u64 = 31 * 24 * 60;

const USAGE: &str = "\
Usage: scripts/sim [--seed N] [--seeds A..B] [--minutes M] [--twice] [--trace]
       scripts/sim --planted [BUG]
       scripts/sim --failover [--seeds A..B]

Runs simulated clusters from seeds and checks every invariant.

  --seed N      One seed.
  --seeds A..B  The seeds from A up to, and without, B.
  --minutes M   Seeds from the first one (or from 1), until M minutes are over.
  --twice       Each seed twice; the traces must be the same.
  --trace       Print the whole trace of each seed, line by line.
  --planted     Build each bug of tests/planted in, or the one that is named, and run the seeds
                from 1 to 200 until something is found. Prints a table of what found it. With
                seeds: these seeds with this bug, told as without.
  --failover    No storm: kill a leader a seed, and print how long no write was acknowledged, without
                and with raft.fast_failover. In virtual time, with the default timers.

Exit code: 0 nothing was found, 1 something was, 2 wrong usage. With --planted: 0 each bug was
caught, 1 one was not.";

struct Wanted {
    first: u64,
    until: u64,
    limit: Option<Duration>,
    trace: bool,
    twice: bool,
    /// Planted bugs, by name; all of them for no name.
    planted: Option<Option<String>>,
    failover: bool,
    /// Seeds were given.
    given: bool,
}

fn wanted(words: impl Iterator<Item = String>) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        first: 1,
        until: 21,
        limit: None,
        trace: false,
        twice: false,
        planted: None,
        failover: false,
        given: false,
    };
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let mut number = |text: Option<String>| -> Result<u64, String> {
            let text = text
                .or_else(|| words.next())
                .ok_or(format!("{word} needs a value"))?;
            text.parse()
                .map_err(|_| format!("{word}: {text} is no number"))
        };
        wanted.given |= matches!(word.as_str(), "--seed" | "--seeds" | "--minutes");
        match word.as_str() {
            "--seed" => {
                wanted.first = number(None)?;
                wanted.until = wanted.first.saturating_add(1);
            }
            "--minutes" => {
                let minutes = number(None)?;
                if !(1..=MOST_MINUTES).contains(&minutes) {
                    return Err(format!("--minutes is 1 to {MOST_MINUTES}"));
                }
                wanted.limit = Some(Duration::from_secs(60 * minutes));
                wanted.until = u64::MAX;
            }
            "--seeds" => {
                let text = words.next().ok_or("--seeds needs a range")?;
                let range = text
                    .split_once("..")
                    .ok_or(format!("{text} is no range A..B"))?;
                let parse = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
                (wanted.first, wanted.until) = (parse(range.0)?, parse(range.1)?);
            }
            "--trace" => wanted.trace = true,
            "--twice" => wanted.twice = true,
            "--planted" => {
                wanted.planted = Some(words.next_if(|word| !word.starts_with("--")));
            }
            "--failover" => wanted.failover = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    if wanted.first >= wanted.until {
        return Err(format!("{}..{} holds no seed", wanted.first, wanted.until));
    }
    if wanted.failover && (wanted.limit.is_some() || wanted.planted.is_some()) {
        return Err("--failover goes with --seed and --seeds only".to_owned());
    }
    if wanted.given && matches!(wanted.planted, Some(None)) {
        return Err("--planted with seeds needs the name of a bug".to_owned());
    }
    #[cfg(feature = "planted-bugs")]
    if let Some(Some(name)) = &wanted.planted
        && tenure_planted::Bug::named(name).is_none()
    {
        let names = tenure_planted::Bug::ALL.iter().map(|bug| bug.name());
        let names: Vec<&str> = names.collect();
        return Err(format!(
            "there is no bug {name}; there are: {}",
            names.join(", ")
        ));
    }
    Ok(wanted)
}

#[derive(Default)]
struct Sum {
    seeds: u64,
    virtual_ms: u64,
    committed: u64,
    counters: BTreeMap<&'static str, u64>,
    calls: u64,
    unknown: u64,
    written: u64,
    fenced: u64,
    faults: BTreeMap<&'static str, u64>,
    failed: Vec<u64>,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.virtual_ms += report.virtual_ms;
        self.committed += report.committed;
        for (name, count) in &report.counters {
            *self.counters.entry(name).or_default() += count;
        }
        let tally = report.tally;
        self.calls += tally.acknowledged + tally.refused + tally.unknown + tally.unavailable;
        self.unknown += tally.unknown;
        self.written += report.writes.0;
        self.fenced += report.writes.1;
        for (kind, count) in &report.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        if !report.violations.is_empty() {
            self.failed.push(report.seed);
        }
    }

    fn print(&self, took: Duration) {
        let hours = self.virtual_ms as f64 / 3_600_000.0;
        let ratio = self.virtual_ms as f64 / 1000.0 / took.as_secs_f64().max(0.001);
        let faults: u64 = self.faults.values().sum();
        println!(
            "\n{} seeds, {hours:.2} simulated hours in {:.0} s ({ratio:.0} times real time)",
            self.seeds,
            took.as_secs_f64()
        );
        println!(
            "{} log entries, {} calls ({} with unknown outcome), {} records stored, {} writes fenced off",
            self.committed, self.calls, self.unknown, self.written, self.fenced
        );
        for (name, count) in &self.counters {
            println!("  {count:>7}  {name}");
        }
        println!("{faults} faults:");
        for (kind, count) in &self.faults {
            println!("  {count:>7}  {kind}");
        }
        println!("{} seeds failed {:?}", self.failed.len(), self.failed);
    }
}

fn tell(report: &Report, planted: Option<&str>) {
    for violation in &report.violations {
        println!(
            "\nseed {}: NOT TRUE: {}\n  at {:.3} s: {}\n",
            report.seed,
            violation.sentence,
            violation.at_us as f64 / 1e6,
            violation.what
        );
    }
    if let Some(first) = report.violations.first() {
        println!("What happened before the first one:");
        for line in &first.story {
            println!("  {line}");
        }
    }
    let planted = planted.map_or(String::new(), |bug| format!("--planted {bug} "));
    println!(
        "\nAgain: scripts/sim {planted}--seed {} --trace",
        report.seed
    );
}

#[cfg(not(feature = "planted-bugs"))]
fn planted(_name: Option<&str>) -> ExitCode {
    eprintln!("this was built without the feature planted-bugs: use scripts/sim");
    ExitCode::from(2)
}

#[cfg(feature = "planted-bugs")]
fn planted(name: Option<&str>) -> ExitCode {
    use tenure_planted::Bug;
    use tenure_sim::planted::{SEEDS, hunt, table};

    let bugs = name
        .and_then(Bug::named)
        .map_or(Bug::ALL.to_vec(), |bug| vec![bug]);
    let began = Instant::now();
    let hunts = hunt(&bugs, SEEDS, |hunt| match &hunt.caught {
        Some((seed, found)) => eprintln!(
            "{:<30} seed {seed:>3}: {} ({})",
            hunt.bug, found.sentence, found.what
        ),
        None => eprintln!("{:<30} NOT CAUGHT", hunt.bug),
    });
    println!("\n{}", table(&hunts));
    let missed = hunts.iter().filter(|hunt| hunt.caught.is_none()).count();
    println!(
        "{} bugs, {missed} not caught, {:.0} s",
        hunts.len(),
        began.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(missed > 0))
}

/// One line for the leaders that were killed; false if a cluster did not come back.
fn failovers(wanted: &Wanted, fast: bool) -> bool {
    let next = AtomicU64::new(wanted.first);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let measured: Vec<Option<Failover>> = std::thread::scope(|threads_of| {
        let measuring = || {
            let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            let seeds = seeds.take_while(|seed| *seed < wanted.until);
            seeds.map(|seed| measure(seed, fast)).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..threads).map(|_| threads_of.spawn(measuring)).collect();
        let done = threads.into_iter().map(|thread| thread.join());
        done.flat_map(Result::unwrap_or_default).collect()
    });
    let mut took_ms: Vec<f64> = measured
        .iter()
        .flatten()
        .map(|failover| failover.took_us as f64 / 1_000.0)
        .collect();
    took_ms.sort_by(f64::total_cmp);
    let at = |per_cent: usize| {
        took_ms
            .get(took_ms.len() * per_cent / 100)
            .or(took_ms.last())
    };
    let [p50, p90, p99, most] = [50, 90, 99, 100].map(|per_cent| at(per_cent).unwrap_or(&0.0));
    let more = measured
        .iter()
        .flatten()
        .filter(|failover| failover.terms > 1);
    let missing = measured
        .iter()
        .filter(|failover| failover.is_none())
        .count();
    println!(
        "fast failover {:<4}{} kills  p50 {p50:.0}  p90 {p90:.0}  p99 {p99:.0}  max {most:.0} ms  \
         {} with more than one election, {missing} not measured",
        if fast { "on" } else { "off" },
        took_ms.len(),
        more.count(),
    );
    missing == 0 && !took_ms.is_empty()
}

fn main() -> ExitCode {
    let wanted = match wanted(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let Some(name) = wanted.planted.as_ref().filter(|_| !wanted.given) {
        return planted(name.as_deref());
    }
    if wanted.failover {
        let all = failovers(&wanted, false) & failovers(&wanted, true);
        return ExitCode::from(u8::from(!all));
    }
    let began = Instant::now();
    let next = AtomicU64::new(wanted.first);
    let stop = AtomicBool::new(false);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (reports, received) = mpsc::channel::<(Report, bool)>();
    let mut sum = Sum::default();
    std::thread::scope(|threads_of| {
        for _ in 0..threads {
            let (wanted, next, stop, reports) = (&wanted, &next, &stop, reports.clone());
            threads_of.spawn(move || {
                #[cfg(feature = "planted-bugs")]
                tenure_planted::plant(
                    (wanted.planted.iter().flatten())
                        .find_map(|name| tenure_planted::Bug::named(name)),
                );
                while !stop.load(Ordering::Relaxed)
                    && wanted.limit.is_none_or(|limit| began.elapsed() < limit)
                {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= wanted.until {
                        return;
                    }
                    let report = run(seed, wanted.trace);
                    let same = !wanted.twice || run(seed, false).trace.hash == report.trace.hash;
                    if reports.send((report, same)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(reports);
        for (report, same) in received {
            if let Some(text) = &report.trace.text {
                print!("{text}");
            }
            println!(
                "seed {:>6}  {:>6.1} s  {:>6} entries  {:>3} faults  trace {:016x}{}{}",
                report.seed,
                report.virtual_ms as f64 / 1000.0,
                report.committed,
                report.faults.values().sum::<u64>(),
                report.trace.hash,
                if same {
                    ""
                } else {
                    "  DIFFERS THE SECOND TIME"
                },
                if report.violations.is_empty() {
                    ""
                } else {
                    "  FAILED"
                },
            );
            sum.add(&report);
            if !same {
                sum.failed.push(report.seed);
            }
            if !report.violations.is_empty() && sum.failed.len() <= 3 {
                tell(&report, wanted.planted.as_ref().and_then(Option::as_deref));
            }
        }
    });
    sum.print(began.elapsed());
    ExitCode::from(u8::from(!sum.failed.is_empty()))
}
