package encryption

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
)

// Settings are the administrator's. The names in the comments are kube-apiserver's flags, which have the same meaning.
// The zero value encrypts nothing.
type Settings struct {
	// File is an EncryptionConfiguration. --encryption-provider-config
	File string
	// Reload uses a changed file without a restart. --encryption-provider-config-automatic-reload
	Reload bool
}

// Validate reports every fault at once, those of the file too.
func (s Settings) Validate() error {
	if s.File == "" {
		if s.Reload {
			return errors.New("--encryption-provider-config-automatic-reload needs --encryption-provider-config")
		}
		return nil
	}
	if err := s.check(); err != nil {
		return fmt.Errorf("--encryption-provider-config: %w", err)
	}
	return nil
}

var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// check checks the file. It calls no plug-in.
func (s Settings) check() error {
	info, err := os.Stat(s.File)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s holds keys and has mode %04o: others must not read or write it (chmod 600 %s)", s.File, mode, s.File)
	}
	data, err := os.ReadFile(s.File)
	if err != nil {
		return err
	}
	return s.judge(data)
}

// judge checks the content of the file.
func (s Settings) judge(data []byte) error {
	obj, _, err := codecs.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", s.File, err)
	}
	config, ok := obj.(*apiserver.EncryptionConfiguration)
	if !ok {
		return fmt.Errorf("%s holds a %T, want an EncryptionConfiguration of apiserver.config.k8s.io/v1", s.File, obj)
	}
	if err := validation.ValidateEncryptionConfiguration(config, s.Reload).ToAggregate(); err != nil {
		return fmt.Errorf("%s: %w", s.File, err)
	}
	return nil
}
