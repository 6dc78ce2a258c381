package check

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// sound is the report of nodes between which everything works.
func sound(nodes int) *Report {
	r := &Report{}
	for i := range nodes {
		n := NodeReport{
			Target: NodeTarget{Name: fmt.Sprint("n", i), Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 10250), PodCIDR: fmt.Sprintf("10.244.%d.0/24", i)},
			Opened: &Opened{MTU: 1450, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(i), 2})}},
		}
		for j := range nodes {
			to := fmt.Sprint("n", j)
			for _, k := range []Kind{Node, PodNode, NodePod, Pod, PodUDP, Service, NodePort, MTU, Admitted, Denied} {
				if i == j && (k == Node || k == Pod || k == PodUDP || k == MTU) {
					continue
				}
				one := Result{Kind: k, To: to, OK: true}
				switch k {
				case MTU:
					one.Size = &Size{Link: 1450, Passes: 1450}
				case Pod:
					one.HostRoute = &HostRoute{Link: "balsa-vxlan", Type: "vxlan", Port: 8472, Gateway: "10.244.1.0"}
				}
				n.Results = append(n.Results, one)
			}
			if i != j {
				n.Heard = append(n.Heard, to)
			}
		}
		n.Results = append(n.Results, Result{Kind: DNS, OK: true}, Result{Kind: Outside, OK: true})
		r.Nodes = append(r.Nodes, n)
	}
	return r
}

// fail makes a kind of thing fail between nodes; -1 is all of them.
func (r *Report) fail(from, to int, k Kind, change func(*Result)) {
	for i := range r.Nodes {
		for j := range r.Nodes[i].Results {
			one := &r.Nodes[i].Results[j]
			if (from < 0 || from == i) && one.Kind == k && (to < 0 || one.To == fmt.Sprint("n", to) || one.To == "") {
				one.OK, one.Error = false, "no answer"
				if change != nil {
					change(one)
				}
			}
		}
	}
}

func (r *Report) deaf(node int) { r.Nodes[node].Heard = nil }

func TestDiagnose(t *testing.T) {
	straight := func(one *Result) { one.HostRoute = &HostRoute{Link: "eth0", Type: "device", Gateway: "192.0.2.1"} }
	pods := func(r *Report, from, to int, change func(*Result)) {
		r.fail(from, to, Pod, change)
		for _, k := range []Kind{PodUDP, NodePod, Service, MTU} {
			r.fail(from, to, k, nil)
		}
	}
	for name, tt := range map[string]struct {
		nodes  int
		breaks func(*Report)
		want   []string
	}{
		"nothing":     {3, func(*Report) {}, nil},
		"one alone":   {1, func(*Report) {}, nil},
		"a tunnel":    {3, func(r *Report) { pods(r, 0, 1, nil); r.deaf(1) }, []string{"node n0 → node n1: pod to pod: no answer; UDP 8472 from 192.0.2.0 to 192.0.2.1 seems blocked (node to node works)"}},
		"its answers": {3, func(r *Report) { pods(r, 0, 1, nil) }, []string{"node n0 → node n1: pod to pod: packets arrive and the answers do not come back; UDP 8472 from 192.0.2.1 to 192.0.2.0"}},
		"straight":    {3, func(r *Report) { pods(r, 0, 1, straight); r.deaf(1) }, []string{"sent by 192.0.2.0 straight to 192.0.2.1 over eth0 disappear"}},
		"no route": {3, func(r *Report) {
			pods(r, 0, 1, func(one *Result) { one.HostRoute = &HostRoute{Missing: true} })
			r.deaf(1)
		},
			[]string{"node n0 has no route to the pods of n1 (10.244.1.0/24)"}},
		"somebody else's route": {3, func(r *Report) {
			pods(r, 0, 1, func(one *Result) { one.HostRoute = &HostRoute{Link: "eth1", Gateway: "203.0.113.1"} })
			r.deaf(1)
		}, []string{"sends them to 203.0.113.1 over eth1, which is not 192.0.2.1"}},
		"a tun device": {3, func(r *Report) {
			pods(r, 0, 1, func(one *Result) { one.HostRoute = &HostRoute{Link: "balsa-tun", Type: "tuntap"} })
			r.deaf(1)
		}, []string{"the overlay's UDP port from 192.0.2.0 to 192.0.2.1 seems blocked"}},
		"TCP alone":   {2, func(r *Report) { r.fail(0, 1, Pod, nil) }, []string{"pod to pod by TCP: no answer; UDP works"}},
		"UDP alone":   {2, func(r *Report) { r.fail(0, 1, PodUDP, nil) }, []string{"pod to pod by UDP: no answer; TCP works"}},
		"hosts":       {2, func(r *Report) { r.fail(0, 1, Node, nil); pods(r, 0, 1, nil) }, []string{"node to node: no answer to 192.0.2.1:10250; nothing else can work"}},
		"own pods":    {2, func(r *Report) { pods(r, -1, 1, nil); r.deaf(1) }, []string{"node n0 → node n1: pod to pod: no answer; node n1 does not reach its own pods either", "node n1: node to its pods"}},
		"masquerade":  {2, func(r *Report) { r.fail(0, 1, PodNode, nil) }, []string{"pod to node: no answer at 192.0.2.1:10250, though the host itself reaches it"}},
		"host to pod": {2, func(r *Report) { r.fail(0, 1, NodePod, nil) }, []string{"node to pod: no answer, though pods of n0 reach it"}},
		"Services":    {4, func(r *Report) { r.fail(2, -1, Service, nil) }, []string{"node n2 → nodes n0, n1, n2, n3: pod to Service: for example n2 → n0: no answer"}},
		"the wrong backend": {2, func(r *Report) { r.fail(0, 1, Service, func(one *Result) { one.By = "n0" }) },
			[]string{"pod to Service: answered by the pod on n0 instead"}},
		"NodePorts": {6, func(r *Report) { r.fail(-1, 1, NodePort, nil) },
			[]string{"nodes n0, n1, n2, n3 and 2 others → node n1: NodePort: for example n0 → n1: no answer: a firewall drops it"}},
		"large packets": {2, func(r *Report) { r.fail(0, 1, MTU, func(one *Result) { one.Size = &Size{Link: 1450, Passes: 1350} }) },
			[]string{"packet size: packets of more than 1350 bytes disappear; pods send up to 1450: the network between 192.0.2.0 and 192.0.2.1 must carry 1500"}},
		"large packets, straight": {2, func(r *Report) {
			r.fail(0, 1, MTU, func(one *Result) { one.Size = &Size{Link: 1500, Passes: 1400} })
			r.fail(0, 1, Pod, func(one *Result) { straight(one); one.OK = true })
		}, []string{"carries less than the MTU of the hosts' links says"}},
		"names":         {2, func(r *Report) { r.fail(1, -1, DNS, nil); r.fail(1, -1, Outside, nil) }, []string{"node n1: DNS: no answer: no server answers"}},
		"unknown names": {2, func(r *Report) { r.fail(1, -1, DNS, func(one *Result) { one.Error = "answer NXDOMAIN" }) }, []string{"node n1: DNS: answer NXDOMAIN for a name of the cluster"}},
		"outside names": {3, func(r *Report) { r.fail(-1, -1, Outside, nil) }, []string{"nodes n0, n1, n2: DNS, names outside the cluster: for example on n0 no answer"}},
		"policies":      {2, func(r *Report) { r.fail(0, 1, Denied, nil) }, []string{"node n0 → node n1: NetworkPolicy: a pod that a NetworkPolicy closes is reached: policies are not enforced on n1"}},
		"policy's pods": {2, func(r *Report) { r.fail(0, 1, Admitted, nil) }, []string{"NetworkPolicy: no answer to a pod that no policy closes yet"}},
		"a dead node": {3, func(r *Report) {
			r.Nodes[1] = NodeReport{Target: r.Nodes[1].Target, Fault: "no connection"}
			r.fail(-1, 1, Node, nil)
		}, []string{"node n1: not checked: no connection", "node n0 → node n1: node to node", "node n2 → node n1: node to node"}},
		"the check": {1, func(r *Report) { r.Faults = []string{"Services are not checked: forbidden"} }, []string{"the check itself: Services are not checked: forbidden"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := sound(tt.nodes)
			tt.breaks(r)
			findings := Diagnose(r)
			for i, f := range findings {
				if i >= len(tt.want) {
					t.Errorf("one more: %s", f)
				} else if !strings.Contains(f.String(), tt.want[i]) {
					t.Errorf("%s\nwant %s", f, tt.want[i])
				}
			}
			if len(findings) < len(tt.want) {
				t.Errorf("%d findings, want %v", len(findings), tt.want)
			}
			var text strings.Builder
			if err := Write(&text, r, findings, false); err != nil || len(tt.want) > 0 == strings.Contains(text.String(), "nothing is broken") {
				t.Errorf("%v\n%s", err, text.String())
			}
		})
	}
}

// TestLargeClustersAreShownByWhatIsBroken: of many ways, the table has the broken ones.
func TestLargeClustersAreShownByWhatIsBroken(t *testing.T) {
	r := sound(20)
	r.fail(3, 4, NodePort, nil)
	var text strings.Builder
	if err := Write(&text, r, Diagnose(r), false); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(text.String(), "\n"); lines > 30 || !strings.Contains(text.String(), "399 of 400 paths have no fault") {
		t.Errorf("%d lines:\n%s", lines, text.String())
	}
}

func TestRequestsAreChecked(t *testing.T) {
	good := NodeTarget{Address: netip.MustParseAddrPort("192.0.2.1:1")}.Address
	run := newRun()
	for want, r := range map[string]Request{
		"32 hexadecimal":        {Run: "x", Close: true},
		"exactly one":           {Run: run},
		"exactly one of":        {Run: run, Close: true, Open: &Open{Seconds: 1}},
		"open: give":            {Run: run, Open: &Open{Seconds: 601}},
		"probe: give":           {Run: run, Probe: &Probe{}},
		"cannot be tried":       {Run: run, Probe: &Probe{Seconds: 1, Targets: []Target{{Kind: "x", Address: good}}}},
		"target pod":            {Run: run, Probe: &Probe{Seconds: 1, Targets: []Target{{Kind: Pod}}}},
		"4097 targets, at most": {Run: run, Probe: &Probe{Seconds: 1, Targets: make([]Target, mostTargets+1)}},
	} {
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := (&Request{Run: run, Probe: &Probe{Seconds: 1, Targets: []Target{{Kind: Pod, Address: good}}}}).Validate(); err != nil {
		t.Error(err)
	}
}
