package config

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/balsahq/balsa/control/audit"
	"github.com/balsahq/balsa/control/auth/admission"
	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/auth/authz"
	"github.com/balsahq/balsa/control/encryption"
	"github.com/balsahq/balsa/leader/certificates"
)

// API configures the API server: authentication, authorization, admission, audit,
// encryption at rest, and limits for clients. The flags are kube-apiserver's, where
// it has them.
type API struct {
	Authentication authn.Settings
	Authorization  authz.Settings
	Admission      admission.Settings
	Audit          *audit.Settings
	Encryption     encryption.Settings
	Certificates   Certificates

	MaxReads, MaxWrites, MaxStreams int
	RequestTimeout                  time.Duration

	PodPresets   bool
	Initializers bool
	LegacyAPIs   bool
	LegacyTokens bool
}

func defaultAPI() API {
	return API{
		Authentication: authn.Settings{WebhookVersion: "v1beta1", WebhookTTL: 2 * time.Minute, OIDC: authn.OIDC{UsernameClaim: "sub", SigningAlgs: []string{"RS256"}}},
		Authorization:  authz.Settings{WebhookVersion: "v1beta1", AuthorizedTTL: 5 * time.Minute, UnauthorizedTTL: 30 * time.Second},
		Audit:          defaultAudit(),
		Certificates:   Certificates{SigningLife: certificates.DefaultLife},
		MaxReads:       400, MaxWrites: 200, MaxStreams: 4000, RequestTimeout: time.Minute,
	}
}

// defaultAudit bounds the audit log: a file of 100 MB, and ten older files of that size,
// compressed, for at most thirty days.
func defaultAudit() *audit.Settings {
	s := audit.DefaultSettings()
	s.LogOptions.MaxSize, s.LogOptions.MaxBackups, s.LogOptions.MaxAge, s.LogOptions.Compress = 100, 10, 30, true
	return s
}

// noAuditLog is the value of --audit-log-path that turns the audit log off.
const noAuditLog = "none"

// recordIn sets the audit log to a file in dir, unless the administrator has named
// another file or a webhook, or has turned the audit log off.
func (c *API) recordIn(dir string) {
	switch log := &c.Audit.LogOptions; {
	case log.Path == noAuditLog:
		log.Path = ""
	case audit.Off(c.Audit):
		log.Path = filepath.Join(dir, "audit.log")
	}
}

func (c *API) validate() error {
	errs := []error{c.Authentication.Validate(), c.Authorization.Validate(), c.Admission.Validate(), c.Encryption.Validate(), c.Certificates.validate(), audit.Check(c.Audit)}
	for name, bad := range map[string]bool{
		"max-requests-inflight and --max-mutating-requests-inflight": c.MaxReads+c.MaxWrites < 1 || c.MaxReads < 0 || c.MaxWrites < 0,
		"max-watches-per-client":                                     c.MaxStreams < 1, "request-timeout": c.RequestTimeout <= 0,
	} {
		if bad {
			errs = append(errs, errors.New("--"+name+": give more than 0"))
		}
	}
	return errors.Join(errs...)
}
