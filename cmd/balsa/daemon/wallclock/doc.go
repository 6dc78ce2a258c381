// Package wallclock tells when the wall clock is set: by a person, by NTP on a board that has no clock of its own, or by the
// kernel when a machine wakes from sleep. Timers of Go follow the monotonic clock and notice none of it.
//
// The kernel says so through a timerfd that is cancelled when the clock is set; nothing is polled.
package wallclock
