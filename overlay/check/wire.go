package check

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Path is the path of a node's API that accepts a Request by POST and answers with a Reply, both as JSON.
const Path = "/balsa/netcheck"

// Limits of the requests that a node carries out.
const (
	mostProbes  = 4                // open at once
	mostTargets = 4096             // in one request
	longestLife = 10 * time.Minute // of a probe that is not closed
	longestTry  = 45 * time.Second // for the targets of one request
	triesAtOnce = 64
)

// EchoPort is the port, TCP and UDP, at which a probe answers others.
const EchoPort = 8080

// Kind is a kind of connection that is tried between two nodes, or on one.
type Kind string

// The kinds. From and To are nodes; "pod" is the node's probe.
const (
	Node     Kind = "node"      // host to host: connects to the node's own API
	PodNode  Kind = "pod-node"  // pod to host, likewise
	NodePod  Kind = "node-pod"  // host to pod
	Pod      Kind = "pod"       // pod to pod by TCP
	PodUDP   Kind = "pod-udp"   // pod to pod by UDP
	Service  Kind = "service"   // pod to the cluster address of a Service whose one endpoint is To's pod
	NodePort Kind = "node-port" // host to the port that a Service has on node To, with To's pod behind it
	MTU      Kind = "mtu"       // pod to pod with packets as large as pods send
	DNS      Kind = "dns"       // pod to the cluster's DNS: a name of the cluster
	Outside  Kind = "outside"   // likewise: a name outside of it
	Denied   Kind = "denied"    // pod to a pod that a NetworkPolicy closes: must not connect
	Admitted Kind = "admitted"  // likewise, before it is closed: must connect
)

// Request is a request to a node: exactly one of Open, Probe and Close.
type Request struct {
	// Run names the run: 32 random hexadecimal digits.
	Run   string `json:"run"`
	Open  *Open  `json:"open,omitempty"`
	Probe *Probe `json:"probe,omitempty"`
	Close bool   `json:"close,omitempty"`
}

// Open asks for a probe, for so many seconds if it is not closed before.
type Open struct {
	Seconds int `json:"seconds"`
}

// Probe asks for targets to be tried, all within so many seconds.
type Probe struct {
	Targets []Target `json:"targets"`
	Seconds int      `json:"seconds"`
}

// Target is one thing to try. Name is that of a question to DNS.
type Target struct {
	Kind    Kind           `json:"kind"`
	To      string         `json:"to,omitempty"`
	Address netip.AddrPort `json:"address"`
	Name    string         `json:"name,omitempty"`
}

// Reply is the answer to a Request; which field is set depends on what was asked.
type Reply struct {
	Opened  *Opened  `json:"opened,omitempty"`
	Results []Result `json:"results,omitempty"`
	// Heard, on closing, are the nodes whose probes' datagrams arrived.
	Heard []string `json:"heard,omitempty"`
}

// Opened describes a probe.
type Opened struct {
	Addresses []netip.Addr `json:"addresses"`
	MTU       int          `json:"mtu"` // of its link, in bytes
}

// Result is the result for a Target.
type Result struct {
	Kind Kind   `json:"kind"`
	To   string `json:"to,omitempty"`
	OK   bool   `json:"ok"`
	// Error says why the try failed, By which node answered when it was the wrong one.
	Error string `json:"error,omitempty"`
	By    string `json:"by,omitempty"`
	// Seen is the source address that the target saw.
	Seen string `json:"seen,omitempty"`
	// Size, for MTU, says which packets pass.
	Size *Size `json:"size,omitempty"`
	// HostRoute, for Pod, is the host's route to the pod.
	HostRoute *HostRoute `json:"way,omitempty"`
	Millis    float64    `json:"millis"`
}

// Size tells which packets pass between two pods, in bytes with their IP header.
type Size struct {
	Link    int  `json:"link"`    // what the pod's link takes
	Passes  int  `json:"passes"`  // the largest that arrives
	Learned bool `json:"learned"` // the sender is told that larger ones do not pass
}

// HostRoute is a host's route to an address.
type HostRoute struct {
	Missing bool   `json:"missing,omitempty"`
	Link    string `json:"link,omitempty"`
	Type    string `json:"type,omitempty"` // of the link, as in "ip link"
	Port    int    `json:"port,omitempty"` // UDP, of a VXLAN link
	Gateway string `json:"gateway,omitempty"`
	MTU     int    `json:"mtu,omitempty"` // of the link
}

// Validate reports what is wrong with a request.
func (r *Request) Validate() error {
	if !validRun(r.Run) {
		return errors.New("run must be 32 hexadecimal digits")
	}
	n := 0
	for _, set := range []bool{r.Open != nil, r.Probe != nil, r.Close} {
		if set {
			n++
		}
	}
	if n != 1 {
		return errors.New("give exactly one of open, probe and close")
	}
	if r.Open != nil && (r.Open.Seconds < 1 || r.Open.Seconds > int(longestLife/time.Second)) {
		return fmt.Errorf("open: give 1 to %d seconds", int(longestLife/time.Second))
	}
	if p := r.Probe; p != nil {
		if p.Seconds < 1 || p.Seconds > int(longestTry/time.Second) {
			return fmt.Errorf("probe: give 1 to %d seconds", int(longestTry/time.Second))
		}
		if len(p.Targets) > mostTargets {
			return fmt.Errorf("probe: %d targets, at most %d", len(p.Targets), mostTargets)
		}
		for _, t := range p.Targets {
			if _, known := methods[t.Kind]; !known || !t.Address.IsValid() || len(t.Name) > 255 || len(t.To) > 253 {
				return fmt.Errorf("probe: target %s %s at %s cannot be tried", t.Kind, t.To, t.Address)
			}
		}
	}
	return nil
}

func validRun(s string) bool {
	if len(s) != 32 {
		return false
	}
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
