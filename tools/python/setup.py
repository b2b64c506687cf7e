"""The wheel holds a program: it is of one platform, and of any Python 3. tools/wheel sets the
version."""

import os

from setuptools import setup
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel


class ProgramWheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class ProgramDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(version=os.environ["MOESIM_VERSION"], cmdclass={"bdist_wheel": ProgramWheel},
      distclass=ProgramDistribution)
