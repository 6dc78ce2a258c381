// Package process is what a server or an agent does about its own process: the log, the pid file, the check of the machine
// before the start, the priority, memory, core dumps, panics, profiles, and the
// milestones that `balsa up` and systemd wait for. It knows nothing of Kubernetes.
package process
