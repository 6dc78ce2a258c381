// Command node owns the figures of a build: it starts the built binary on a
// machine of its own (see e2e/host), measures it from outside, and prints one
// table. Given upstream's binaries and a script that starts them, it measures
// both in turns, round by round, so that the noise of a shared machine falls on
// both and their ratio means something.
//
//	main ── families (start, idle, create, …) ── system ─┬─ balsa    (host.Host)
//	  └──── table (figure → samples a system)            └─ upstream (script)
//
// A family is one file and adds rows to the table; a system is what it
// measures. Everything runs on the main goroutine but the clients of a load,
// which the load joins before it returns.
package main
