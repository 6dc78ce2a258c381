package config

import (
	"testing"

	"github.com/balsahq/balsa/control/audit"
)

func TestRequestsAreRecordedUnlessToldOtherwise(t *testing.T) {
	for name, tc := range map[string]struct {
		tell func(*audit.Settings)
		path string
	}{
		"nothing said":  {func(*audit.Settings) {}, "/d/audit.log"},
		"a policy only": {func(s *audit.Settings) { s.PolicyFile = "/p" }, "/d/audit.log"},
		"a path":        {func(s *audit.Settings) { s.LogOptions.Path = "/mine" }, "/mine"},
		"none":          {func(s *audit.Settings) { s.LogOptions.Path = "none" }, ""},
		"a webhook":     {func(s *audit.Settings) { s.WebhookOptions.ConfigFile = "/w" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := defaultAPI()
			tc.tell(c.Audit)
			c.recordIn("/d")
			if got := c.Audit.LogOptions.Path; got != tc.path {
				t.Errorf("records in %q, want %q", got, tc.path)
			}
			if o := c.Audit.LogOptions; o.MaxSize < 1 || o.MaxBackups < 1 || o.MaxAge < 1 {
				t.Errorf("the log has no bound: %+v", o)
			}
		})
	}
}
