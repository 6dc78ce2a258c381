package admission

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	webhookconfig "k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/imagepolicy"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
)

// Settings are kube-apiserver's flags for admission.
type Settings struct {
	// Enable adds plugins to those that are on by default; Disable removes some of those.
	Enable, Disable []string
	// ConfigFile is a file with an AdmissionConfiguration, read once at start; "" keeps the plugins' defaults.
	ConfigFile string
}

// configurable are the plugins that an AdmissionConfiguration may configure.
var configurable = []string{
	eventratelimit.PluginName, imagepolicy.PluginName, mutatingwebhook.PluginName, podnodeselector.PluginName, podsecurity.PluginName,
	podtolerationrestriction.PluginName, resourcequota.PluginName, validatingwebhook.PluginName,
}

// Optional returns the plugins that are off by default.
func Optional() []string { return slices.Clone(off) }

// Validate checks the names, reads the file, and reports all faults.
func (s Settings) Validate() error {
	var errs []error
	for flag, names := range map[string][]string{"enable": s.Enable, "disable": s.Disable} {
		for _, name := range names {
			if !slices.Contains(order, name) {
				errs = append(errs, fmt.Errorf("--%s-admission-plugins: there is no plugin %q; give some of %s", flag, name, strings.Join(order, ", ")))
			}
		}
	}
	for _, name := range s.Enable {
		if slices.Contains(s.Disable, name) {
			errs = append(errs, fmt.Errorf("%s is named by --enable-admission-plugins and by --disable-admission-plugins: take it out of one", name))
		}
	}
	_, err := s.configs()
	return errors.Join(errors.Join(errs...), err)
}

// plugins returns the plugins of a list that are on.
func (s Settings) plugins(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(name string) bool {
		return slices.Contains(s.Disable, name) || slices.Contains(off, name) && !slices.Contains(s.Enable, name)
	})
}

// pluginConfigs are the configurations in the file, by plugin. It implements admission.ConfigProvider.
type pluginConfigs map[string][]byte

// ConfigFor implements admission.ConfigProvider.
func (c pluginConfigs) ConfigFor(plugin string) (io.Reader, error) {
	if data, ok := c[plugin]; ok {
		return bytes.NewReader(data), nil
	}
	return nil, nil
}

var configCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(apiserver.AddToScheme(scheme))
	utilruntime.Must(apiserverv1alpha1.AddToScheme(scheme))
	utilruntime.Must(apiserverv1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// configs reads the file. A plugin in it has to take a configuration and to be on, because the configuration would be
// ignored otherwise.
func (s Settings) configs() (pluginConfigs, error) {
	if s.ConfigFile == "" {
		return nil, nil
	}
	fault := func(format string, args ...any) error {
		return fmt.Errorf("--admission-control-config-file %s: "+format, append([]any{s.ConfigFile}, args...)...)
	}
	data, err := os.ReadFile(s.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--admission-control-config-file: %w", err)
	}
	object, err := runtime.Decode(configCodecs.UniversalDecoder(), data)
	if err != nil {
		return nil, fault("%w; it should be an AdmissionConfiguration of apiserver.config.k8s.io/v1", err)
	}
	file, ok := object.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, fault("it is a %T and should be an AdmissionConfiguration of apiserver.config.k8s.io/v1", object)
	}
	out, on := pluginConfigs{}, s.plugins(order)
	var errs []error
	for _, p := range file.Plugins {
		switch _, twice := out[p.Name]; {
		case !slices.Contains(configurable, p.Name):
			errs = append(errs, fault("plugin %q takes no configuration; those that do: %s", p.Name, strings.Join(configurable, ", ")))
			continue
		case !slices.Contains(on, p.Name):
			errs = append(errs, fault("plugin %s is configured and is not on: add it to --enable-admission-plugins", p.Name))
			continue
		case twice:
			errs = append(errs, fault("plugin %s is there twice", p.Name))
			continue
		}
		text, err := pluginConfiguration(p, filepath.Dir(s.ConfigFile))
		if err != nil {
			errs = append(errs, fault("plugin %s: %w", p.Name, err))
			continue
		}
		out[p.Name] = text
	}
	return out, errors.Join(errs...)
}

// pluginConfiguration returns the configuration in the file, or in the file it names. A relative path starts in the
// file's folder.
func pluginConfiguration(p apiserver.AdmissionPluginConfiguration, dir string) ([]byte, error) {
	var text []byte
	switch {
	case p.Configuration != nil:
		text = p.Configuration.Raw
	case p.Path == "":
		return nil, errors.New("give either a configuration or the path of a file")
	default:
		name := p.Path
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		var err error
		if text, err = os.ReadFile(name); err != nil {
			return nil, err
		}
	}
	if p.Name == mutatingwebhook.PluginName || p.Name == validatingwebhook.PluginName {
		return text, checkWebhooks(text)
	}
	return text, nil
}

// checkWebhooks checks the configuration of the webhook plugins now, because they are built only when the first webhook
// exists.
func checkWebhooks(text []byte) error {
	cfg, err := webhookconfig.LoadConfig(bytes.NewReader(text))
	if err == nil && cfg.StaticManifestsDir != "" {
		return errors.New("staticManifestsDir has no effect here: create the webhooks by the API")
	}
	return err
}
