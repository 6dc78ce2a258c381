// Package wallclock notices when the wall clock is set: by an administrator, by NTP on a board without a battery-backed clock,
// or by the kernel when a machine wakes from sleep. Go's timers follow the monotonic clock and do not notice.
//
// The kernel reports it through a timerfd that it cancels when the clock is set. Nothing is polled.
package wallclock
