package audit

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
)

// Settings are kube-apiserver's --audit-* flags; their AddFlags registers them under the same names.
type Settings = options.AuditOptions

// DefaultSettings returns settings that record nothing, with kube-apiserver's defaults for everything else.
func DefaultSettings() *Settings { return options.NewAuditOptions() }

// Off reports whether the settings record nothing. Nil is off.
func Off(s *Settings) bool {
	return s == nil || s.LogOptions.Path == "" && s.WebhookOptions.ConfigFile == ""
}

// Check reports every fault of the settings that can be found without starting the backends.
func Check(s *Settings) error {
	if Off(s) {
		if s != nil && s.PolicyFile != "" {
			return fmt.Errorf("--audit-policy-file %s: give also where to record, with --audit-log-path or --audit-webhook-config-file", s.PolicyFile)
		}
		return nil
	}
	errs := s.Validate()
	if _, err := rules(s); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Auditor records requests. Its two exported parts are arguments of upstream's filters.
type Auditor struct {
	// Backend takes events.
	Backend audit.Backend
	// Rules decide the level and stages at which a request is recorded.
	Rules audit.PolicyRuleEvaluator

	file io.Closer // nil if the log is not a file of the Auditor
	done chan struct{}
}

// New makes an Auditor, nil when the settings are off. It creates the log's file and starts nothing. The warning of a
// policy that records secrets goes to logger.
func New(s *Settings, logger *slog.Logger) (*Auditor, error) {
	if err := Check(s); err != nil || Off(s) {
		return nil, err
	}
	a := &Auditor{done: make(chan struct{})}
	var err error
	if a.Rules, err = rules(s); err != nil {
		return nil, err
	}
	for _, kind := range recordsSecrets(a.Rules) {
		logger.Warn("the audit policy records the content of "+kind+"; use level Metadata for them", "file", s.PolicyFile)
	}
	var backends []audit.Backend
	if s.LogOptions.Path != "" {
		b, err := a.logBackend(&s.LogOptions)
		if err != nil {
			return nil, err
		}
		backends = append(backends, b)
	}
	if s.WebhookOptions.ConfigFile != "" {
		b, err := webhookBackend(&s.WebhookOptions)
		if err != nil {
			a.close()
			return nil, err
		}
		backends = append(backends, b)
	}
	a.Backend = audit.Union(backends...)
	return a, nil
}

// Start starts the backends. Stop must follow.
func (a *Auditor) Start() error {
	if a == nil {
		return nil
	}
	return a.Backend.Run(a.done)
}

// Stop writes all pending events, and returns when each is written or dropped. There must be no running requests.
func (a *Auditor) Stop() {
	if a == nil {
		return
	}
	close(a.done)
	a.Backend.Shutdown()
	a.close()
}

func (a *Auditor) close() {
	if a.file != nil {
		_ = a.file.Close() // no data is lost: every line was written at once
	}
}

func (a *Auditor) logBackend(o *options.AuditLogOptions) (audit.Backend, error) {
	out, err := a.open(o)
	if err != nil {
		return nil, fmt.Errorf("--audit-log-path %s: %w", o.Path, err)
	}
	version, err := schema.ParseGroupVersion(o.GroupVersionString)
	if err != nil {
		return nil, fmt.Errorf("--audit-log-version %q: %w", o.GroupVersionString, err)
	}
	b := batched(log.NewBackend(out, o.Format, version), &o.BatchOptions)
	return truncated(b, &o.TruncateOptions, version), nil
}

func (a *Auditor) open(o *options.AuditLogOptions) (io.Writer, error) {
	if o.Path == "-" {
		return os.Stdout, nil
	}
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(o.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if o.MaxSize == 0 {
		a.file = file
		return file, nil
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	rotated := &lumberjack.Logger{Filename: o.Path, MaxAge: o.MaxAge, MaxBackups: o.MaxBackups, MaxSize: o.MaxSize, Compress: o.Compress}
	a.file = rotated
	return rotated, nil
}

func webhookBackend(o *options.AuditWebhookOptions) (audit.Backend, error) {
	version, err := schema.ParseGroupVersion(o.GroupVersionString)
	if err != nil {
		return nil, fmt.Errorf("--audit-webhook-version %q: %w", o.GroupVersionString, err)
	}
	b, err := auditwebhook.NewBackend(o.ConfigFile, version, webhook.DefaultRetryBackoffWithInitialDelay(o.InitialBackoff), nil)
	if err != nil {
		return nil, fmt.Errorf("--audit-webhook-config-file %s: %w", o.ConfigFile, err)
	}
	return truncated(batched(b, &o.BatchOptions), &o.TruncateOptions, version), nil
}

// batched sends in the background, or at once with or without failing the request.
func batched(b audit.Backend, o *options.AuditBatchOptions) audit.Backend {
	switch o.Mode {
	case options.ModeBlockingStrict:
		return b
	case options.ModeBlocking:
		return lenient{b}
	}
	return buffered.NewBackend(b, o.BatchConfig)
}

func truncated(b audit.Backend, o *options.AuditTruncateOptions, version schema.GroupVersion) audit.Backend {
	if !o.Enabled {
		return b
	}
	return truncate.NewBackend(b, o.TruncateConfig, version)
}

func rules(s *Settings) (audit.PolicyRuleEvaluator, error) {
	if s.PolicyFile == "" {
		return policy.NewPolicyRuleEvaluator(defaultPolicy()), nil
	}
	p, err := policy.LoadPolicyFromFile(s.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("--audit-policy-file %s: %w", s.PolicyFile, err)
	}
	return policy.NewPolicyRuleEvaluator(p), nil
}
