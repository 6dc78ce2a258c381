package encryption

import (
	"bytes"
	"testing"
)

func FuzzHeader(f *testing.F) {
	for _, s := range []string{"", "k8s:enc:", "k8s:enc:aesgcm:v1:k:data", "k8s:enc:kms:v2:n:\x0a\x01x\x12\x01y", "k8s:enc:secretbox:v1:", "k8s:enc:::::"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		h := HeaderOf(stored)
		if len(h.Key)+len(h.Provider) > len(stored)+len("unknown") || !bytes.HasPrefix(stored, []byte(mark)) && h != (Header{}) {
			t.Fatalf("%q: %+v", stored, h)
		}
		_ = h.String()
	})
}

// A faulty configuration is refused with a reason.
func FuzzConfiguration(f *testing.F) {
	head := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n"
	for _, s := range []string{"", "resources: []", "resources: [{resources: [secrets], providers: [{aesgcm: {keys: [{name: a, secret: YWFhYWFhYWFhYWFhYWFhYQ==}]}}, {identity: {}}]}]",
		"resources: [{resources: ['*.*'], providers: [{kms: {apiVersion: v2, name: n, endpoint: 'unix:///x', timeout: 1s}}]}]", "resources: [{resources: [null], providers: [{}]}]"} {
		f.Add([]byte(head + s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = Settings{File: "f"}.judge(data)
	})
}
