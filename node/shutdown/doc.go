// Package shutdown ends a node's pods before the machine goes down. systemd's logind tells over D-Bus that the machine is
// about to go down, and waits as long as a delay lock is held. Parse and Plan are functions of values; Watcher holds the
// lock.
package shutdown
