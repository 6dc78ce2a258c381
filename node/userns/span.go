package userns

import (
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
)

// Span is the host's IDs that are for pods: Count ranges of PerPod, the first at First.
type Span struct {
	First uint32
	Count int
}

func (s Span) at(i int) Range { return Range{s.First + uint32(i)*PerPod} }

func (s Span) index(r Range) (int, bool) {
	i := (int64(r.First) - int64(s.First)) / PerPod
	return int(i), r.First >= s.First && r.First%PerPod == 0 && i < int64(s.Count)
}

// Everything is every ID but the first PerPod, which are the host's own.
func Everything() Span { return Span{First: PerPod, Count: (1<<32 - PerPod) / PerPod} }

// owner is the user whose subordinate IDs pods get, as with the upstream kubelet.
const owner = "kubelet"

// HostSpan returns the subordinate IDs of the user kubelet where this machine has that user and the program getsubids,
// else Everything.
func HostSpan() (Span, error) {
	var unknown user.UnknownUserError
	if _, err := user.Lookup(owner); errors.As(err, &unknown) {
		return Everything(), nil
	} else if err != nil {
		return Span{}, err
	}
	program, err := exec.LookPath("getsubids")
	if errors.Is(err, exec.ErrNotFound) {
		return Everything(), nil
	}
	if err != nil {
		return Span{}, err
	}
	uids, err := exec.Command(program, owner).Output()
	if err != nil {
		return Span{}, fmt.Errorf("subordinate user IDs of %s: %w", owner, err)
	}
	gids, err := exec.Command(program, "-g", owner).Output()
	if err != nil {
		return Span{}, fmt.Errorf("subordinate group IDs of %s: %w", owner, err)
	}
	if string(uids) != string(gids) {
		return Span{}, fmt.Errorf("subordinate user IDs (%q) and group IDs (%q) of %s differ; make them the same in /etc/subuid and /etc/subgid", uids, gids, owner)
	}
	return parseSpan(string(uids))
}

// parseSpan reads what getsubids says: "0: kubelet 65536 2147483648".
func parseSpan(out string) (Span, error) {
	f := strings.Fields(out)
	if len(f) != 4 || strings.Count(strings.TrimSpace(out), "\n") > 0 {
		return Span{}, fmt.Errorf("subordinate IDs of %s: getsubids says %q, want one line with a first ID and a number of IDs", owner, out)
	}
	first, err1 := strconv.ParseUint(f[2], 10, 32)
	length, err2 := strconv.ParseUint(f[3], 10, 64)
	switch {
	case err1 != nil || err2 != nil:
		return Span{}, fmt.Errorf("subordinate IDs of %s: getsubids says %q, want numbers", owner, out)
	case first < PerPod || first%PerPod != 0 || length%PerPod != 0 || length == 0 || first+length > 1<<32:
		return Span{}, fmt.Errorf("subordinate IDs of %s: first ID %d and number %d must be multiples of %d, from %d on", owner, first, length, PerPod, PerPod)
	}
	return Span{uint32(first), int(length / PerPod)}, nil
}
