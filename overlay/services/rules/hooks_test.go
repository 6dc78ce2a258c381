package rules

import (
	"net/netip"
	"regexp"
	"slices"
	"testing"

	"github.com/balsahq/balsa/overlay/nettest"
	"github.com/balsahq/balsa/overlay/services"
)

// TestOnlyTheTunnelCostsEveryPacket: other chains than those of type nat, which the kernel asks once for each connection, are
// where packets between pods do not pass, unless there is a tunnel.
func TestOnlyTheTunnelCostsEveryPacket(t *testing.T) {
	hooks := regexp.MustCompile(`type filter hook (\w+)`)
	for name, tt := range map[string]struct {
		cfg  Config
		want []string
	}{
		"IPv4, tunnel":    {Config{V4: true, Tunnel: 8472}, []string{"output", "prerouting"}},
		"IPv6, tunnel":    {Config{Tunnel: 8472}, []string{"output", "prerouting"}},
		"IPv4, no tunnel": {Config{V4: true}, []string{"input"}},
		"IPv6, no tunnel": {Config{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ns := nettest.Open(t)
			tt.cfg.Bridge, tt.cfg.Mark = "balsa0", 0x4000
			tt.cfg.Pods = []netip.Prefix{netip.MustParsePrefix("fd00::/48")}
			if tt.cfg.V4 {
				tt.cfg.Pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
			}
			tt.cfg.NodePods = tt.cfg.Pods
			table, err := Open(tt.cfg, ns)
			if err != nil {
				t.Fatal(err)
			}
			defer table.Close()
			if _, err := table.Apply(services.NewPlan()); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range hooks.FindAllStringSubmatch(runNFT(t, ns, "list", "ruleset"), -1) {
				got = append(got, m[1])
			}
			if slices.Sort(got); !slices.Equal(got, tt.want) {
				t.Errorf("chains at %v, want %v", got, tt.want)
			}
		})
	}
}
