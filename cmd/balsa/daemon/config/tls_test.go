package config

import (
	"crypto/tls"
	"strings"
	"testing"
)

func TestTLSFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		flags TLS
		fault string // "": none
	}{
		"none":              {TLS{}, ""},
		"both":              {TLS{CipherSuites: []string{needed, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, MinVersion: "VersionTLS12"}, ""},
		"a version alone":   {TLS{MinVersion: "VersionTLS13"}, ""},
		"no version":        {TLS{MinVersion: "1.3"}, "--tls-min-version: unknown tls version \"1.3\"; give one of VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13"},
		"no suite":          {TLS{CipherSuites: []string{"AES"}}, "--tls-cipher-suites: Cipher suite AES not supported or doesn't exist; give some of TLS_"},
		"suites of TLS 1.3": {TLS{CipherSuites: []string{needed}, MinVersion: "VersionTLS13"}, "has no effect with --tls-min-version VersionTLS13"},
		"without HTTP/2's":  {TLS{CipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}}, "add " + needed},
	} {
		t.Run(name, func(t *testing.T) {
			c := DefaultNode()
			c.NodeName, c.TLS = "n1", tt.flags
			err := c.Validate()
			if tt.fault == "" && err != nil || tt.fault != "" && (err == nil || !strings.Contains(err.Error(), tt.fault)) {
				t.Errorf("%v, want %q", err, tt.fault)
			}
		})
	}
	if version, suites := (&TLS{}).Policy(); version != tls.VersionTLS12 || suites != nil {
		t.Errorf("by default %x, %v", version, suites)
	}
}
