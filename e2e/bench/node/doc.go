// Command node measures one node: it starts the built binary on a machine of its own (see e2e/host), measures it from
// outside, and prints one table. Given upstream's binaries and a script that starts them, it measures both systems
// round by round in turns, so that the noise of a shared machine affects both and their ratio is meaningful.
//
//	main ── families (start, idle, create, …) ── system ─┬─ balsa    (host.Host)
//	  └──── table (figure → samples a system)            └─ upstream (script)
//
// A family is one file and adds rows to the table; a system is a measured cluster. Everything runs on the main
// goroutine except the clients of a load, which the load joins before it returns.
package main
