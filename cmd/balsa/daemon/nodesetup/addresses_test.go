package nodesetup

import (
	"strings"
	"testing"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
)

func TestNodesAddressesAreInTheOrderOfThePodsFamilies(t *testing.T) {
	for _, tt := range []struct{ given, pods, want string }{
		{"10.0.0.1", "10.244.0.0/16", "10.0.0.1"},
		{"10.0.0.1", "10.244.0.0/16,fd00:244::/48", "10.0.0.1"}, // who gives one means one
		{"10.0.0.1,2001:db8::1", "10.244.0.0/16,fd00:244::/48", "10.0.0.1 2001:db8::1"},
		{"10.0.0.1,2001:db8::1", "fd00:244::/48,10.244.0.0/16", "2001:db8::1 10.0.0.1"},
		{"2001:db8::1,10.0.0.1", "10.244.0.0/16", "2001:db8::1 10.0.0.1"},
	} {
		c := config.DefaultNode()
		c.NodeIP, c.ClusterCIDR = tt.given, tt.pods
		first, err := Address(&c)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ip := range IPs(&c, first) {
			got = append(got, ip.String())
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s of pods in %s: %v, want %s", tt.given, tt.pods, got, tt.want)
		}
	}
}
