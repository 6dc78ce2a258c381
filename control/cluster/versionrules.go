package cluster

import (
	"fmt"
	"regexp"
	"strconv"
)

// versionForm takes v1.2.3 and what git adds to it; "dev" and bare commits say nothing about order.
var versionForm = regexp.MustCompile(`^v?(\d{1,6})\.(\d{1,6})(?:\.|-|\+|$)`)

func parseVersion(text string) (major, minor int, ok bool) {
	m := versionForm.FindStringSubmatch(text)
	if m == nil {
		return 0, 0, false
	}
	major, _ = strconv.Atoi(m[1]) // six digits fit
	minor, _ = strconv.Atoi(m[2])
	return major, minor, true
}

// checkVersions says why a machine of a version may not join this one, and which to upgrade. Members may differ by one
// protocol and one minor version; versions that cannot be read are judged by protocol alone.
func checkVersions(ours, theirs string, ourProtocol, theirProtocol int) error {
	older := func(what string) error {
		return fmt.Errorf("the joining machine runs balsa %s (%s), this cluster %s: upgrade the joining machine first", theirs, what, ours)
	}
	newer := func(what string) error {
		return fmt.Errorf("the joining machine runs balsa %s (%s), this cluster %s: upgrade the servers first, one after the other, or join with the cluster's version", theirs, what, ours)
	}
	protocol := fmt.Sprintf("protocol %d, here %d", theirProtocol, ourProtocol)
	switch d := theirProtocol - ourProtocol; {
	case d > 1:
		return newer(protocol)
	case d < -1:
		return older(protocol)
	}
	major, minor, ok := parseVersion(ours)
	theirMajor, theirMinor, theirOK := parseVersion(theirs)
	if !ok || !theirOK {
		return nil
	}
	what := "more than one minor version away"
	switch {
	case theirMajor > major || theirMajor == major && theirMinor > minor+1:
		return newer(what)
	case theirMajor < major || theirMajor == major && theirMinor < minor-1:
		return older(what)
	}
	return nil
}
