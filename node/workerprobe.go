package node

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/probe"
)

// startProbes begins the probes of a container that runs. What an earlier life
// of the agent found stays true until a probe says otherwise.
func (w *worker) startProbes(c *v1.Container, id string) {
	in := w.o.ByID(id)
	if in == nil || in.State != podloop.StateRunning || w.o.Latest(c.Name) != in || !w.o.StoppingSince.IsZero() {
		return
	}
	if c.LivenessProbe == nil && c.ReadinessProbe == nil && c.StartupProbe == nil {
		return
	}
	ip := ""
	if ips := podloop.PodIPs(w.pod, w.o, w.a.hostIPs); len(ips) > 0 {
		ip = ips[0]
	}
	w.a.probes.Start(probe.Target{
		Pod: w.pod, Container: c, ContainerID: id, PodIP: ip, StartedAt: in.Started, Started: w.o.StartedUp[id],
	})
}

// probed takes in what a probe of the newest run of a container found.
func (w *worker) probed(name string, kind probe.Kind, r probe.Result) {
	in := w.o.Latest(name)
	c, _ := podloop.FindContainer(w.pod, name)
	if in == nil || c == nil || in.State != podloop.StateRunning {
		return
	}
	switch kind {
	case probe.Readiness:
		w.o.Ready[in.ID] = r == probe.Success
	case probe.Startup:
		if r == probe.Success {
			w.o.StartedUp[in.ID] = true
		} else if r == probe.Failure {
			w.o.Unhealthy[in.ID] = &podloop.Unhealthy{Kind: "startup", Grace: probeGrace(w.pod, c.StartupProbe)}
		}
	case probe.Liveness:
		if r == probe.Failure {
			w.o.Unhealthy[in.ID] = &podloop.Unhealthy{Kind: "liveness", Grace: probeGrace(w.pod, c.LivenessProbe)}
		}
	}
}

func probeGrace(pod *v1.Pod, p *v1.Probe) int64 {
	if p != nil && p.TerminationGracePeriodSeconds != nil {
		return *p.TerminationGracePeriodSeconds
	}
	return podloop.GracePeriod(pod, nil)
}

// readTermination reads what a container left behind as its last words.
func (w *worker) readTermination(in *podloop.Instance, policy v1.TerminationMessagePolicy) {
	text := ""
	if in.TerminationMessageFile != "" {
		text = readHead(in.TerminationMessageFile, maxTerminationMessage)
	}
	if text == "" && policy == v1.TerminationMessageFallbackToLogsOnError && in.ExitCode != 0 {
		text = logTail(in.LogPath)
	}
	switch {
	case text == "":
	case in.Message == "":
		in.Message = text
	default:
		in.Message += ": " + text
	}
}

func readHead(path string, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return string(b)
}

// logTail is the end of a container's log without the runtime's marks.
func logTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 256 << 10
	if st, err := f.Stat(); err == nil && st.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	var lines []string
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	partial := false
	for sc.Scan() {
		parts := bytes.SplitN(sc.Bytes(), []byte(" "), 4)
		if len(parts) < 4 {
			continue
		}
		if partial && len(lines) > 0 {
			lines[len(lines)-1] += string(parts[3])
		} else {
			lines = append(lines, string(parts[3]))
		}
		partial = string(parts[2]) == "P"
	}
	if len(lines) > maxTerminationLines {
		lines = lines[len(lines)-maxTerminationLines:]
	}
	text := strings.Join(lines, "\n")
	if text != "" && !partial { // what ends without a newline is marked as going on
		text += "\n"
	}
	if len(text) > maxTerminationLog {
		text = text[len(text)-maxTerminationLog:]
	}
	return text
}
