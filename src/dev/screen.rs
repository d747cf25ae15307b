//! The one screen of a development cluster.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal, Write};
use std::time::Duration;

use tenure_api::RunId;
use tenure_api::cluster::ClusterStatus;
use tenure_api::executors::ExecutorsQuery;
use tenure_api::runs::{Run, RunState, RunsQuery};
use tenure_sdk::Client;
use tokio::time::{Instant, sleep, timeout};

use super::layout::{Layout, quoted};
use super::processes::Fleet;
use super::{DevError, DevOptions};

const REFRESH: Duration = Duration::from_millis(500);
/// The most runs that are kept for the screen; how many are shown depends on its height.
const SHOWN_RUNS: usize = 40;
/// The fewest lines of news and of runs, however small the screen is.
const LEAST_NEWS: usize = 1;
const LEAST_RUNS: usize = 1;
/// The most lines of news.
const MOST_NEWS: usize = 5;
const PAGE: u32 = 50;

/// What was seen last.
#[derive(Default)]
struct Seen {
    status: Option<ClusterStatus>,
    runs: Vec<Run>,
    executors: Vec<String>,
    news: VecDeque<String>,
    ended: BTreeMap<RunState, u64>,
    counted_to: u64,
    waiting: std::collections::BTreeSet<RunId>,
    leaderless_since: Option<Instant>,
    leader: Option<u64>,
}

/// Shows what is going on, until it is cancelled.
pub(super) async fn show(
    layout: &Layout,
    options: &DevOptions,
    client: &Client,
    fleet: &mut Fleet,
) -> Result<(), DevError> {
    let screen = !options.plain && std::io::stdout().is_terminal();
    let mut seen = Seen::default();
    if !screen {
        print(&format!("{}\n", guide(layout)))?;
    }
    loop {
        let alive: Vec<bool> = fleet.nodes.iter_mut().map(|node| node.alive()).collect();
        fleet.revive()?;
        // A cluster without a leader answers late: the screen goes on.
        let _ = timeout(REFRESH * 2, seen.look(client)).await;
        seen.note_leader();
        if screen {
            print(
                &seen
                    .draw(layout, fleet, &alive)
                    .on_terminal(Size::of_terminal()),
            )?;
        } else {
            while let Some(line) = seen.news.pop_front() {
                print(&format!("{line}\n"))?;
            }
        }
        sleep(REFRESH).await;
    }
}

fn print(text: &str) -> Result<(), DevError> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| DevError::new("standard output", error))
}

fn guide(layout: &Layout) -> String {
    format!(
        "admin API    {}/v1   (any node answers)\n\
         files        {}   (admin.token, *.log, examples, docs)\n\
         another terminal:   . {}\n\
         \x20 tenure job list;   tenure run list --job every-second",
        layout.nodes[0].url(),
        layout.dir.display(),
        quoted(&layout.shell_file.display().to_string()),
    )
}

/// How large the terminal is, in characters.
#[derive(Clone, Copy, Debug)]
struct Size {
    columns: usize,
    rows: usize,
}

impl Size {
    /// 80 by 24 if the terminal does not tell.
    fn of_terminal() -> Self {
        let told = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        let told = told.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        Self {
            columns: told.map_or(80, |size| usize::from(size.ws_col)),
            rows: told.map_or(24, |size| usize::from(size.ws_row)),
        }
    }
}

/// What the screen shows, before anybody knows how large it is.
#[derive(Debug, Default)]
struct Picture {
    head: Vec<String>,
    /// The newest first: the last ones are left out.
    runs: Vec<String>,
    /// The newest last: the first ones are left out.
    news: Vec<String>,
    /// Long lines go on in the next row, because people copy them.
    foot: Vec<String>,
}

impl Picture {
    /// The lines that fit. Head and foot are whole, unless they alone are too much; then the foot goes.
    fn fitted(&self, size: Size) -> Vec<String> {
        let rows_of = |line: &String| line.chars().count().div_ceil(size.columns).max(1);
        let mut foot: Vec<&String> = self.foot.iter().collect();
        // Two empty lines part runs, news and foot.
        let least = self.head.len() + LEAST_RUNS + LEAST_NEWS + 2;
        while least + foot.iter().copied().map(rows_of).sum::<usize>() > size.rows
            && foot.pop().is_some()
        {}
        let fixed = self.head.len() + 2 + foot.iter().copied().map(rows_of).sum::<usize>();
        let free = size.rows.saturating_sub(fixed);
        let news = self
            .news
            .len()
            .min(MOST_NEWS)
            .min((free / 4).max(LEAST_NEWS));
        let runs = free.saturating_sub(news);
        let cut = |line: &String| line.chars().take(size.columns).collect::<String>();
        let mut lines: Vec<String> = self.head.iter().map(cut).collect();
        lines.extend(self.runs.iter().take(runs).map(cut));
        lines.push(String::new());
        lines.extend(self.news[self.news.len() - news..].iter().map(cut));
        lines.push(String::new());
        lines.extend(foot.into_iter().cloned());
        lines
    }

    /// What a terminal must get. Nothing is wiped first, so nothing flickers.
    fn on_terminal(&self, size: Size) -> String {
        let lines = self.fitted(size);
        format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"))
    }
}

impl Seen {
    async fn look(&mut self, client: &Client) {
        self.status = client.cluster().await.ok();
        let query = RunsQuery {
            limit: Some(PAGE),
            ..RunsQuery::default()
        };
        if let Ok(page) = client.runs_page(&query).await {
            self.runs = page.items;
        }
        if let Ok(page) = client.executors_page(&ExecutorsQuery::default()).await {
            self.executors = page
                .items
                .iter()
                .map(|one| {
                    format!(
                        "{} ({}, {} of {} slots)",
                        one.instance_id, one.state, one.tasks_held, one.capacity
                    )
                })
                .collect();
        }
        self.count();
    }

    /// Tells of each run once when it is new, and once when it has ended.
    fn count(&mut self) {
        let mut lines = Vec::new();
        for run in self.runs.iter().rev() {
            let fresh = run.id.0 > self.counted_to;
            if fresh {
                self.counted_to = run.id.0;
                self.waiting.insert(run.id);
            }
            if run.state.is_final() && self.waiting.remove(&run.id) {
                *self.ended.entry(run.state).or_default() += 1;
                lines.push(line(run));
            }
        }
        // What fell off the page without being seen to end is not waited for.
        if let Some(oldest) = self.runs.last().map(|run| run.id) {
            self.waiting.retain(|id| *id >= oldest);
        }
        self.runs.truncate(SHOWN_RUNS);
        lines.into_iter().for_each(|line| self.tell(line));
    }

    fn tell(&mut self, line: String) {
        self.news.push_back(line);
        while self.news.len() > 200 {
            self.news.pop_front();
        }
    }

    fn note_leader(&mut self) {
        let leader = self
            .status
            .as_ref()
            .and_then(|status| status.leader)
            .map(|id| id.0);
        let term = self.status.as_ref().map_or(0, |status| status.term.0);
        match (leader, self.leaderless_since) {
            (None, None) => {
                self.leaderless_since = Some(Instant::now());
                self.tell("! no leader: what runs goes on, nothing new is decided".into());
            }
            (Some(node), since) => {
                if self.leader != Some(node) {
                    let after = since.map_or(String::new(), |at| {
                        format!(" (seen after {} ms)", at.elapsed().as_millis())
                    });
                    self.tell(format!("* node {node} leads term {term}{after}"));
                }
                self.leaderless_since = None;
                self.leader = leader;
            }
            (None, Some(_)) => {}
        }
    }

    fn draw(&self, layout: &Layout, fleet: &Fleet, alive: &[bool]) -> Picture {
        let mut head = vec![
            "Tenure: three nodes, one executor. Ctrl-C stops and keeps everything.".to_owned(),
            String::new(),
        ];
        let leader = self
            .status
            .as_ref()
            .and_then(|status| status.leader)
            .map(|id| id.0);
        for (node, (member, alive)) in layout.nodes.iter().zip(fleet.nodes.iter().zip(alive)) {
            let role = match (alive, leader == Some(node.id)) {
                (false, _) => "DEAD, starts again in a moment",
                (true, true) => "LEADER",
                (true, false) => "follower",
            };
            let pid = member.pid().map_or("-".into(), |pid| pid.to_string());
            let url = node.url();
            head.push(format!("  {:<7} pid {pid:<8} {url}  {role}", member.label));
        }
        head.push(
            self.status
                .as_ref()
                .map_or("  no answer".to_owned(), |status| {
                    format!(
                        "  term {} · log index {} · {} jobs · {} queued · {} running",
                        status.term,
                        status.applied_index,
                        status.counts.jobs,
                        status.counts.tasks_queued,
                        status.counts.tasks_running
                    )
                }),
        );
        let ended: Vec<String> = self
            .ended
            .iter()
            .map(|(state, count)| format!("{count} {state}"))
            .collect();
        head.push(format!("  executors: {}", self.executors.join(", ")));
        head.push(format!("  ended since the start: {}", ended.join(", ")));
        head.push(String::new());
        let mut foot = Vec::new();
        if let Some(pid) = self.leader_pid(layout, fleet) {
            foot.push(format!(
                "try: kill -9 {pid}   (the leader), and watch who takes over"
            ));
        }
        foot.extend(guide(layout).lines().map(str::to_owned));
        let news = self.news.iter().filter(|line| line.starts_with(['!', '*']));
        Picture {
            head,
            runs: self.runs.iter().map(short_line).collect(),
            news: news.map(|line| format!("  {line}")).collect(),
            foot,
        }
    }

    fn leader_pid(&self, layout: &Layout, fleet: &Fleet) -> Option<u32> {
        let leader = self.status.as_ref()?.leader?.0;
        let place = layout.nodes.iter().position(|node| node.id == leader)?;
        fleet.nodes.get(place)?.pid()
    }
}

/// One run, whole: for a log.
fn line(run: &Run) -> String {
    format!(
        "{:<22} due {}  run {:<8} {:<10} {}/{} shards  {}",
        run.job.as_str(),
        run.scheduled_at,
        run.id.0,
        run.state,
        run.counts.succeeded,
        run.shard_count,
        took(run)
    )
}

/// One run, in 80 columns: the day is today's.
fn short_line(run: &Run) -> String {
    let due = run.scheduled_at.to_string();
    let due = due.split_once('T').map_or(due.as_str(), |(_, time)| time);
    format!(
        "  {:<17.17} due {due:<13} run {:<7} {:<9} {}/{} shards  {}",
        run.job.as_str(),
        run.id.0,
        run.state,
        run.counts.succeeded,
        run.shard_count,
        took(run)
    )
}

fn took(run: &Run) -> String {
    run.finished_at.map_or(String::new(), |end| {
        let start = run.started_at.unwrap_or(run.created_at);
        format!("{} ms", end.as_ms().saturating_sub(start.as_ms()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(what: &str, count: usize) -> Vec<String> {
        (0..count)
            .map(|number| format!("{what} {number}"))
            .collect()
    }

    fn picture() -> Picture {
        Picture {
            head: numbered("head", 9),
            runs: numbered("run", 40),
            news: numbered("news", 7),
            foot: vec!["try".into(), "admin".into(), "a".repeat(150)],
        }
    }

    fn rows(lines: &[String], columns: usize) -> usize {
        let rows = lines.iter().map(|line| line.len().div_ceil(columns).max(1));
        rows.sum()
    }

    #[test]
    fn everything_fits_and_the_head_is_seen() {
        for (columns, rows_there) in [(80, 24), (120, 40), (40, 24), (80, 15), (200, 80)] {
            let size = Size {
                columns,
                rows: rows_there,
            };
            let lines = picture().fitted(size);
            assert!(rows(&lines, columns) <= rows_there, "{size:?}: {lines:#?}");
            assert_eq!(lines[0], "head 0", "{size:?}");
            assert!(lines.contains(&"run 0".into()), "{size:?}");
            assert!(lines.contains(&"news 6".into()), "{size:?}");
        }
    }

    #[test]
    fn a_usual_screen_has_the_whole_foot_and_a_large_one_more_runs() {
        let small = picture().fitted(Size {
            columns: 80,
            rows: 24,
        });
        assert_eq!(small.last(), Some(&"a".repeat(150)));
        let large = picture().fitted(Size {
            columns: 80,
            rows: 40,
        });
        let runs = |lines: &[String]| lines.iter().filter(|line| line.starts_with("run")).count();
        assert!(runs(&large) > runs(&small) + 10);
    }
}
