"""Backward elimination from 2,000 features to 1,600: mlxtend's usual script, one import changed.

    python make_data.py data.csv
    python seed_script.py data.csv 1600

The line that was changed is marked. Both arguments are optional and default to these values.
"""

from __future__ import annotations

import sys

import pandas as pd
from sklearn.linear_model import LinearRegression

# Was: from mlxtend.feature_selection import SequentialFeatureSelector
from dagsel.mlxtend import SequentialFeatureSelector

path = sys.argv[1] if len(sys.argv) > 1 else "data.csv"
k_features = int(sys.argv[2]) if len(sys.argv) > 2 else 1600

data = pd.read_csv(path)
X = data.drop(columns=["Path", "id", "label"])
y = data["label"]

selector = SequentialFeatureSelector(
    LinearRegression(), k_features=k_features, forward=False, scoring="neg_mean_squared_error"
)
selector = selector.fit(X, y)

print("Selected features:", *selector.k_feature_names_)
print("Number of features:", len(selector.k_feature_idx_))
print("Cross-validated score:", selector.k_score_)
