//! The next instants of a trigger, as the interface shows them, and for a job file without a cluster.
//!
//! There is one reader of triggers, the scheduler's own. So what a file is shown to do is what a cluster would
//! decide for a job created now, with this program's data about time zones.

use jiff::tz::TimeZone;
use tenure_api::jobs::{NextFire, NextFires};
use tenure_api::{JobSpec, Timestamp};
use tenure_machine as machine;
use tenure_machine::Trigger;
use tenure_machine::plan::schedule::{ScheduleError, Schedules};

use super::convert;

/// The first `count` instants of a job file after `now`.
///
/// # Errors
/// The trigger cannot be read.
pub fn of_file(spec: &JobSpec, now: Timestamp, count: u32) -> Result<NextFires, ScheduleError> {
    let trigger = convert::trigger_to_machine(&spec.trigger);
    let now_ms = now.as_unsigned_ms();
    let mut schedules = Schedules::default();
    let first_ms = schedules.next_after(&trigger, now_ms, now_ms)?;
    let origin = Origin {
        anchor_ms: now_ms,
        since_ms: now_ms,
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    Ok(NextFires {
        job: spec.name.clone(),
        timezone: timezone_of(&trigger).to_owned(),
        fires: fires(&mut schedules, &trigger, origin, first_ms, count)?,
    })
}

/// From where a trigger counts.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    /// When the job was created: intervals count from here.
    pub(crate) anchor_ms: u64,
    /// When the trigger came. A first instant before it is left over from an earlier trigger.
    pub(crate) since_ms: u64,
}

impl Origin {
    pub(crate) fn of(job: &machine::Job) -> Self {
        Self {
            anchor_ms: job.created_at_ms,
            since_ms: job.trigger_since_ms,
        }
    }
}

/// At most `count` instants, beginning with `first_ms`.
pub(crate) fn fires(
    schedules: &mut Schedules,
    trigger: &Trigger,
    origin: Origin,
    first_ms: Option<u64>,
    count: usize,
) -> Result<Vec<NextFire>, ScheduleError> {
    let timezone = timezone_of(trigger);
    let zone = TimeZone::get(timezone).map_err(|_| ScheduleError::TimeZone {
        timezone: timezone.to_owned(),
    })?;
    let mut fires = Vec::new();
    let mut next = first_ms;
    while let Some(instant_ms) = next
        && fires.len() < count
    {
        fires.push(NextFire {
            at: Timestamp::from_unsigned_ms(instant_ms),
            local: local(instant_ms, &zone),
        });
        let after_ms = instant_ms.max(origin.since_ms);
        next = schedules.next_after(trigger, origin.anchor_ms, after_ms)?;
    }
    Ok(fires)
}

pub(crate) fn timezone_of(trigger: &Trigger) -> &str {
    match trigger {
        Trigger::Cron { timezone, .. } => timezone,
        Trigger::Every { .. } | Trigger::At { .. } | Trigger::Manual => "UTC",
    }
}

/// RFC 3339 with the zone's offset at that instant.
fn local(instant_ms: u64, zone: &TimeZone) -> String {
    let instant = i64::try_from(instant_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .unwrap_or(jiff::Timestamp::MAX);
    let zoned = instant.to_zoned(zone.clone());
    zoned.strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local_times(trigger: &str, now: &str, count: u32) -> Vec<String> {
        let text = format!("name: a\ntrigger: {trigger}\ntask: {{ capability: shell }}\n");
        let spec = JobSpec::from_yaml(&text).unwrap();
        let next = of_file(&spec, now.parse().unwrap(), count).unwrap();
        let without_ms = |fire: NextFire| fire.local.replace(".000", "");
        next.fires.into_iter().map(without_ms).collect()
    }

    #[test]
    fn each_trigger_has_its_next_instants() {
        let now = "2026-12-01T00:00:30Z";
        assert_eq!(
            local_times("{ cron: \"0 2 * * *\", timezone: Europe/Berlin }", now, 2),
            ["2026-12-01T02:00:00+01:00", "2026-12-02T02:00:00+01:00"]
        );
        assert_eq!(
            local_times("{ cron: \"*/20 * * * * *\" }", now, 3),
            [
                "2026-12-01T00:00:40+00:00",
                "2026-12-01T00:01:00+00:00",
                "2026-12-01T00:01:20+00:00"
            ]
        );
        assert_eq!(
            local_times("{ every: 45s }", now, 2),
            ["2026-12-01T00:01:15+00:00", "2026-12-01T00:02:00+00:00"]
        );
        assert_eq!(
            local_times("{ at: \"2026-12-02T00:00:00Z\" }", now, 5),
            ["2026-12-02T00:00:00+00:00"]
        );
        assert!(local_times("{ at: \"2026-11-02T00:00:00Z\" }", now, 5).is_empty());
        assert!(local_times("{ manual: true }", now, 5).is_empty());
    }

    /// The examples of `docs/jobs.md`.
    #[test]
    fn the_clocks_go_forward_and_back_as_the_page_says() {
        let berlin = |cron: &str| format!("{{ cron: \"{cron}\", timezone: Europe/Berlin }}");
        // On 29 March 2026 the clocks go from 02:00 to 03:00, on 25 October from 03:00 back to 02:00.
        let (forward, back) = ("2026-03-28T22:00:00Z", "2026-10-24T22:30:00Z");
        assert_eq!(
            local_times(&berlin("30 2 * * *"), forward, 2),
            ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
        );
        assert_eq!(
            local_times(&berlin("30 2 * * *"), back, 2),
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
        );
        assert_eq!(
            local_times(&berlin("30 1,2 * * *"), back, 3),
            [
                "2026-10-25T01:30:00+02:00",
                "2026-10-25T02:30:00+02:00",
                "2026-10-26T01:30:00+01:00"
            ]
        );
        assert_eq!(
            local_times(&berlin("30 * * * *"), "2026-03-29T00:00:00Z", 2),
            ["2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"]
        );
        assert_eq!(
            local_times(&berlin("30 * * * *"), "2026-10-25T00:00:00Z", 3),
            [
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:30:00+01:00",
                "2026-10-25T03:30:00+01:00"
            ]
        );
    }
}
